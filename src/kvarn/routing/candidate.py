"""One replica as a request that looks for one sees it: what it has cached, what stands before it, how fast it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvarn.admission.predictor import Predictor
from kvarn.config.schema import EngineConfig
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import EngineStats

WAITING_WEIGHT = 4
"""A request that waits is as much load as this many that run: its prompt is still to be computed (llm-d, Dynamo)."""
FIRST_SPEED = 5000.0
"""Prompt tokens a second expected of an engine that has not measured its steps."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What looks for a replica."""

    prompt_tokens: int
    names: bytes = b""
    """Of the prompt's full blocks, 8 bytes each; empty where nobody needs them."""
    session: str = ""
    """The conversation that it belongs to; empty where it says of none."""
    adapter: str = ""
    """Name of the adapter that it needs."""
    sequences: int = 1
    excluded: Collection[str] = ()
    """Names of replicas that shall not have it: they have failed it."""


class Candidate:
    """A replica. All times in seconds.

    Args:
        name: The replica's.
        config: How its engine schedules.
    """

    __slots__ = (
        "adapters",
        "available",
        "busy_s",
        "cached_tokens",
        "config",
        "empty_tokens",
        "expected_cached_total",
        "free_tokens",
        "knows_blocks",
        "name",
        "pair_s",
        "picked",
        "picked_total",
        "queue_tokens",
        "reservations",
        "reserved_rows",
        "reserved_tokens",
        "resident_adapters",
        "row_s",
        "running",
        "speed",
        "stats",
        "updated_s",
        "waiting",
    )

    def __init__(self, name: str, config: EngineConfig | None = None) -> None:
        self.name = name
        self.config = config or EngineConfig()
        self.available = True
        """Whether it takes requests, and its circuit breaker lets them through."""
        self.adapters: Collection[str] | None = None
        """Names of adapters that requests may name; None: of any."""
        self.resident_adapters: Collection[str] = ()
        """Names of those with which sequences run."""
        self.knows_blocks = False
        """Whether it is known what it has cached."""
        self.cached_tokens = 0
        """Of the prompt in question."""
        self.picked = 0
        """Number of the decision that picked it last."""
        self.picked_total = 0
        self.expected_cached_total = 0
        """Tokens of prompts that it was picked for and thought to have cached."""
        self.reservations: set[Reservation] = set()
        """Of requests that its statistics do not count yet."""
        self.reserved_tokens = 0
        self.reserved_rows = 0
        self.stats: EngineStats | None = None
        self.updated_s = 0.0
        self.waiting = self.running = 0
        self.queue_tokens = 0.0
        """Of prompts that were to be computed when it last told."""
        self.speed = FIRST_SPEED
        """Prompt tokens a second beside what decodes."""
        self.pair_s = 0.0
        """For a (query, key) pair of a prompt."""
        self.row_s = 0.0
        """What a sequence adds to each step."""
        self.busy_s = 0.0
        """Until the step under way ends, on average."""
        self.free_tokens = float("inf")
        """Room in its KV cache, counting blocks that only the prefix cache holds."""
        self.empty_tokens = float("inf")
        """Room for which no cached block must go."""

    def update(self, stats: EngineStats, now: float) -> None:
        """Take its latest statistics; the same again change nothing."""
        if stats is self.stats:
            return
        self.stats, self.updated_s = stats, now
        # What was sent while that step ran is not in its statistics yet.
        for reservation in [each for each in self.reservations if each.sent_s < now - stats.step_s]:
            reservation.end()
        self.waiting, self.running = stats.waiting, stats.running
        self.queue_tokens = stats.prefill_tokens + sum(stats.waiting_tokens_by_priority.values())
        self.resident_adapters = stats.adapters.running
        if stats.kv_blocks_total:
            waiting = sum(stats.waiting_tokens_by_priority.values())
            self.free_tokens = stats.kv_blocks_free * BLOCK_SIZE - waiting
            self.empty_tokens = self.free_tokens - stats.kv_blocks_cached * BLOCK_SIZE
        times = stats.step_times
        if times is not None:
            predictor = Predictor(times, self.config)
            rows, context = stats.decode_rows, stats.decode_context
            self.speed = predictor.prefill_speed(times.prefill_token_s, rows, context)
            self.pair_s = times.prefill_pair_s
            self.row_s = times.decode_row_s + times.decode_token_s * context / max(1, rows)
            self.busy_s = predictor.decode_s(rows, context) / 2 if stats.running + stats.waiting else 0.0

    @property
    def load(self) -> int:
        """4 x waiting + running, requests that were just picked for it included."""
        return WAITING_WEIGHT * (self.waiting + self.reserved_rows) + self.running

    def wait_s(self, now: float) -> float:
        """Predicted time until a new request's prompt is begun."""
        ahead = self.queue_tokens - (now - self.updated_s) * self.speed  # it has gone on since it told
        return self.busy_s + ((ahead if ahead > 0 else 0.0) + self.reserved_tokens) / self.speed

    def prefill_s(self, prompt_tokens: int) -> float:
        """Predicted time to compute what is not cached of a prompt."""
        uncached = self.uncached(prompt_tokens)
        return uncached / self.speed + uncached * (self.cached_tokens + uncached / 2) * self.pair_s

    def uncached(self, prompt_tokens: int) -> int:
        """Tokens of a prompt that are to be computed: one at least, whose logits the answer begins with."""
        uncached = prompt_tokens - self.cached_tokens
        return uncached if uncached > 1 else 1

    def reserve(self, request: RouteRequest) -> Reservation:
        """Count a picked request as load from now on: the part of its prompt that is not cached here."""
        return Reservation(self, self.uncached(request.prompt_tokens), request.sequences)


class Reservation:
    """A picked request's load, until the engine's statistics count it or it is over."""

    __slots__ = ("_candidate", "_rows", "_tokens", "sent_s")

    def __init__(self, candidate: Candidate, tokens: int, rows: int) -> None:
        self._candidate = candidate
        self._tokens = tokens
        self._rows = rows
        self.sent_s = float("inf")
        """When it went to the engine."""
        candidate.reservations.add(self)
        candidate.reserved_tokens += tokens
        candidate.reserved_rows += rows

    def sent(self, now: float) -> None:
        """The request goes to the engine now."""
        self.sent_s = now

    def end(self) -> None:
        """It is counted otherwise, or over. May be called again."""
        if self in self._candidate.reservations:
            self._candidate.reservations.remove(self)
            self._candidate.reserved_tokens -= self._tokens
            self._candidate.reserved_rows -= self._rows
