"""What an engine is doing now: its latest statistics, and what this gateway has sent it and seen end since.

Statistics come a few times a second; in between, a gateway that only looked at them would send everything it has to an
engine that seems idle. Others may send to the same engine: the statistics count theirs too.
"""

from __future__ import annotations

from collections import Counter

from kvarn.admission.demand import Demand
from kvarn.admission.predictor import Load, Mix, Predictor
from kvarn.config.schema import EngineConfig
from kvarn.wire.messages import EngineStats

SAME_STEP_S = 0.02
"""Answers that end this soon after the statistics came ended in the very step that those tell of."""


class EngineView:
    """One engine, as far as this gateway knows.

    Args:
        config: How it is configured.
        kv_tokens: That fit into its KV cache; 0: unknown.
        tpot_target_s: Which it is told with each request; None: none.
    """

    def __init__(self, config: EngineConfig, kv_tokens: int, tpot_target_s: float | None = None) -> None:
        self.config = config
        self._tpot_target_s = tpot_target_s
        self._kv_tokens = kv_tokens
        self.predictor: Predictor | None = None
        """None until the engine has measured how long its steps take."""
        self._stats = EngineStats()
        self._updated = 0.0
        self._sent: dict[Demand, float] = {}
        """What the statistics do not count yet, oldest first, and when each was sent."""
        self._sent_rows = 0
        self._sent_tokens = Counter[int]()
        """Of prompts, by priority."""
        self._ended_rows = 0
        """Of sequences that the statistics still count."""

    def update(self, stats: EngineStats, now: float) -> None:
        """Take the latest statistics; the same again change nothing."""
        if stats is self._stats:
            return
        self._stats, self._updated = stats, now
        self.predictor = (
            None if stats.step_times is None else Predictor(stats.step_times, self.config, self._tpot_target_s)
        )
        # What was sent while that step ran waits for the next one: the statistics do not count it yet.
        for demand in [demand for demand, at in self._sent.items() if at < now - stats.step_s]:
            self._forget(demand)
        self._ended_rows = 0

    def sent(self, demand: Demand, now: float) -> None:
        """A request went to the engine."""
        self._sent[demand] = now
        self._sent_rows += demand.sequences
        self._sent_tokens[demand.priority] += int(demand.prompt_tokens)

    def ended(self, demand: Demand, now: float) -> None:
        """The engine is done with a request."""
        if demand in self._sent:
            self._forget(demand)
        elif now > self._updated + min(SAME_STEP_S, self._stats.step_s / 2):
            self._ended_rows += demand.sequences

    def _forget(self, demand: Demand) -> None:
        del self._sent[demand]
        self._sent_rows -= demand.sequences
        self._sent_tokens[demand.priority] -= int(demand.prompt_tokens)

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait inside the engine."""
        return self._stats.waiting > 0

    @property
    def rows(self) -> int:
        """Sequences that the engine has."""
        return max(0, self._stats.running + self._stats.waiting + self._sent_rows - self._ended_rows)

    def load(self, priority: int, now: float, mix: Mix) -> Load:
        """What stands before a request of this priority."""
        stats = self._stats
        rows = self.rows
        waiting = {tier: tokens for tier, tokens in stats.waiting_tokens_by_priority.items() if tier <= priority}
        prefill = float(stats.prefill_tokens + sum(waiting.values()))
        prefill += sum(tokens for tier, tokens in self._sent_tokens.items() if tier <= priority)
        context = stats.decode_context + max(0, rows - stats.decode_rows) * mix.prompt_tokens
        computed = self._computed_since(now, stats.decode_rows, stats.decode_context, mix)
        decoding = min(rows, stats.decode_rows + (rows - stats.decode_rows) // 2)
        return Load(rows, decoding, context, max(0.0, prefill - computed), self._free_kv_tokens(rows, mix))

    def _computed_since(self, now: float, rows: int, context: float, mix: Mix) -> float:
        """Prompt tokens that the engine has probably computed since the statistics were made."""
        if self.predictor is None:
            return 0.0
        return (now - self._updated) * self.predictor.prefill_speed(self.predictor.token_s(mix), rows, context)

    def _free_kv_tokens(self, rows: int, mix: Mix) -> float:
        """Room for new sequences, when those that are here grow by half an answer each."""
        if not self._kv_tokens or not self._stats.kv_blocks_total:
            return float("inf")
        block = self._kv_tokens / self._stats.kv_blocks_total
        taken = sum(self._stats.waiting_tokens_by_priority.values())
        taken += self._sent_tokens.total()
        return self._stats.kv_blocks_free * block - taken - rows * mix.output_tokens / 2
