"""One replica as a request that looks for one sees it: what it has cached, what stands before it, how fast it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvarn.admission.engine_load import EngineLoad
from kvarn.config.engine import EngineConfig
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import EngineStats

WAITING_WEIGHT = 4
"""A request that waits is as much load as this many that run: its prompt is still to be computed (llm-d, Dynamo)."""
FIRST_SPEED = 5000.0  # prompt tokens a second expected of an engine that has not measured its steps


@dataclass(frozen=True, slots=True)
class RouteRequest:
    prompt_tokens: int
    names: bytes = b""  # names of the prompt's full blocks, 8 bytes each; empty where no policy reads them
    session: str = ""  # the conversation that it belongs to; empty where it says of none
    adapter: str = ""  # name of the adapter that it needs
    sequences: int = 1
    excluded: Collection[str] = ()  # names of replicas that have failed it: any other goes before them
    refusing: Collection[str] = ()  # names of replicas that have too much to do for it


class Candidate(EngineLoad):
    """A replica, with what its latest statistics say computed once. All times in seconds."""

    def __init__(self, name: str, config: EngineConfig | None = None) -> None:
        super().__init__(config or EngineConfig())
        self.name = name
        self.available = True  # whether it takes requests, and its circuit breaker lets them through
        self.adapters: Collection[str] | None = None  # names of adapters that requests may name; None: of any
        self.resident_adapters: Collection[str] = ()  # names of those with which sequences run
        self.knows_blocks = False  # whether it is known what it has cached
        self.cached_tokens = 0  # tokens of the present prompt
        self.picked = 0  # number of the decision that picked it last
        self.picked_total = 0
        self.expected_cached_total = 0  # tokens of prompts that it was picked for and thought to have cached
        self.queue_tokens = 0  # tokens of prompts to compute at the latest statistics
        self.speed = FIRST_SPEED  # prompt tokens a second beside what decodes
        self.pair_s = 0.0  # for a (query, key) pair of a prompt
        self.row_s = 0.0  # seconds that a sequence adds to each step
        self.busy_s = 0.0  # until the step under way ends, on average
        self.empty_tokens = float("inf")  # room for which no cached block must go

    def update(self, stats: EngineStats, now: float) -> bool:
        if not super().update(stats, now):
            return False
        self.queue_tokens = stats.prefill_tokens + self.waiting_tokens
        self.resident_adapters = stats.adapters.running
        self.empty_tokens = self.free_tokens - stats.kv_blocks_cached * BLOCK_SIZE
        times = stats.step_times
        if times is not None and self.predictor is not None:
            rows, context = stats.decode_rows, stats.decode_context
            self.speed = self.predictor.prefill_speed(times.prefill_token_s, rows, context)
            self.pair_s = times.prefill_pair_s
            self.row_s = times.decode_row_s + times.decode_token_s * context / max(1, rows)
            self.busy_s = times.decode_s(rows, context) / 2 if stats.running + stats.waiting else 0.0
        return True

    @property
    def load(self) -> int:
        """4 x waiting + running, requests that were just picked for it included."""
        return WAITING_WEIGHT * (self.stats.waiting + self.reserved_rows) + self.stats.running

    def wait_s(self, now: float) -> float:
        """Predicted time until a new request's prompt is begun."""
        ahead = self.queue_tokens - (now - self.updated_s) * self.speed  # it has gone on since then
        return self.busy_s + ((ahead if ahead > 0 else 0.0) + self.reserved_tokens) / self.speed

    def prefill_s(self, prompt_tokens: int) -> float:
        """Predicted time to compute what is not cached of a prompt."""
        uncached = self.uncached(prompt_tokens)
        return uncached / self.speed + uncached * (self.cached_tokens + uncached / 2) * self.pair_s

    def uncached(self, prompt_tokens: int) -> int:
        """Tokens of a prompt that are to be computed: one at least, whose logits the answer begins with."""
        uncached = prompt_tokens - self.cached_tokens
        return uncached if uncached > 1 else 1
