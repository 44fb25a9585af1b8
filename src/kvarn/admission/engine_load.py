"""The load of one engine: its latest statistics, and what this gateway has sent it and seen end since.

Statistics come a few times a second; in between, a gateway that only looked at them would send everything it has to an
engine that seems idle. Others may send to the same engine: the statistics count theirs too. Admission and the choice of
a replica both read this.
"""

from __future__ import annotations

import math
from collections import Counter

from kvarn.admission.predictor import Load, Mix, Predictor
from kvarn.config.engine import EngineConfig
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import EngineStats

SAME_STEP_S = 0.02  # answers that end this soon after the statistics came ended in the very step that those describe
PATIENCE = 2  # intervals and steps that an engine which works may take to tell more, before it counts as silent


class EngineLoad:
    """Load of one engine, as far as this gateway knows. `tpot_target_s` is sent with each request; None: none."""

    def __init__(self, config: EngineConfig, tpot_target_s: float | None = None) -> None:
        self.config = config
        self._tpot_target_s = tpot_target_s
        self.predictor: Predictor | None = None  # None until the engine has measured how long its steps take
        self.stats = EngineStats()
        self.updated_s = 0.0
        self._owes_since_s = math.inf  # time since which it has work of which it has told nothing more
        self.reservations: set[Reservation] = set()  # requests that the statistics do not count yet
        self.reserved_rows = 0
        self.reserved_tokens = 0
        self._tokens_by_priority = Counter[int]()  # `reserved_tokens` by priority
        self._ended_rows = 0  # ended sequences that the statistics still count

    def update(self, stats: EngineStats, now: float) -> bool:
        """Take the latest statistics; False where they are known."""
        if stats is self.stats:
            return False
        times = stats.step_times
        if times is not self.stats.step_times:
            self.predictor = None if times is None else Predictor(times, self.config, self._tpot_target_s)
        self.stats, self.updated_s = stats, now
        # What was sent while that step ran waits for the next one: the statistics do not count it yet.
        if self.reservations:
            for reservation in [each for each in self.reservations if each.sent_s < now - stats.step_s]:
                reservation.end()
        self._ended_rows = 0
        has_work = stats.running + stats.waiting > 0 or any(each.sent_s <= now for each in self.reservations)
        self._owes_since_s = now if has_work else math.inf
        return True

    def is_silent(self, now: float) -> bool:
        """Whether it should have told of its work by now: it is cut off, stands still, or takes unusually long for a
        step. One that rests owes nothing. False while it is unknown when it speaks."""
        stats, quiet_s = self.stats, now - self._owes_since_s
        if self.predictor is None or not stats.every_s or quiet_s <= PATIENCE * stats.every_s:
            return False
        tokens = min(self.config.token_budget, stats.prefill_tokens + self.waiting_tokens + self.reserved_tokens)
        context = (stats.kv_blocks_total - stats.kv_blocks_free) * BLOCK_SIZE / max(1, stats.running)
        step_s = self.predictor.decode_s(self.rows, stats.decode_context)
        step_s += self.predictor.prompt_s(tokens, tokens * (context + tokens / 2))
        return quiet_s > PATIENCE * (stats.every_s + max(stats.step_s, step_s))

    def reserve(self, tokens: int, rows: int, priority: int = 0) -> Reservation:
        """Count a request as load from now on; `tokens` of its prompt have to be computed."""
        return Reservation(self, tokens, rows, priority)

    @property
    def has_waiting(self) -> bool:
        return self.stats.waiting > 0

    @property
    def rows(self) -> int:
        return max(0, self.stats.running + self.stats.waiting + self.reserved_rows - self._ended_rows)

    @property
    def waiting_tokens(self) -> int:
        return sum(self.stats.waiting_tokens_by_priority.values())

    @property
    def free_tokens(self) -> float:
        """Room in its KV cache, blocks that only the prefix cache holds included; infinite where it is unknown."""
        if not self.stats.kv_blocks_total:
            return float("inf")
        return self.stats.kv_blocks_free * BLOCK_SIZE - self.waiting_tokens

    def ahead_of(self, priority: int, now: float, mix: Mix) -> Load:
        """Work before a request of this priority."""
        stats = self.stats
        rows = self.rows
        prefill = float(stats.prefill_tokens)
        prefill += sum(tokens for tier, tokens in stats.waiting_tokens_by_priority.items() if tier <= priority)
        prefill += sum(tokens for tier, tokens in self._tokens_by_priority.items() if tier <= priority)
        context = stats.decode_context + max(0, rows - stats.decode_rows) * mix.prompt_tokens
        if self.predictor is not None:  # what it has probably computed since the statistics were made
            speed = self.predictor.prefill_speed(self.predictor.token_s(mix), stats.decode_rows, stats.decode_context)
            prefill = max(0.0, prefill - (now - self.updated_s) * speed)
        decoding = min(rows, stats.decode_rows + (rows - stats.decode_rows) // 2)
        # Those that are here grow by half an answer each.
        free = self.free_tokens - self.reserved_tokens - rows * mix.output_tokens / 2
        return Load(rows, decoding, context, prefill, free)


class Reservation:
    """A request's load on an engine, until the engine's statistics count it or it is over."""

    __slots__ = ("_load", "_priority", "_rows", "_tokens", "sent_s")

    def __init__(self, load: EngineLoad, tokens: int, rows: int, priority: int) -> None:
        self._load = load
        self._tokens = tokens
        self._rows = rows
        self._priority = priority
        self.sent_s = float("inf")  # time at which it went to the engine
        load.reservations.add(self)
        self._count(1)

    def sent(self, now: float) -> None:
        self.sent_s = now
        self._load._owes_since_s = min(self._load._owes_since_s, now)

    def end(self, ended_s: float | None = None) -> None:
        """Count it no more; may be called again. `ended_s`: when its answer ended, where the statistics that count it
        shall be corrected."""
        load = self._load
        if self in load.reservations:
            load.reservations.remove(self)
            self._count(-1)
        elif ended_s is not None and ended_s > load.updated_s + min(SAME_STEP_S, load.stats.step_s / 2):
            load._ended_rows += self._rows

    def _count(self, sign: int) -> None:
        self._load.reserved_tokens += sign * self._tokens
        self._load.reserved_rows += sign * self._rows
        self._load._tokens_by_priority[self._priority] += sign * self._tokens
