"""Whether another engine computes a prompt: decided for each request, by the step-time model.

Beside running decodes a prompt is cut into chunks that keep their latency, and still each stretches their steps. Where
another engine of the same model is expected to be done no later, it computes the prompt, and its blocks are loaded here
as if they came from a tier. Without running decodes there is nothing to protect, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.schema import BLOCK_SIZE, EngineConfig
from kvarn.engine.plan import KVFetch
from kvarn.engine.request import Sequence
from kvarn.engine.step import StepBuilder
from kvarn.engine.step_time import StepTimeModel

_SPARE_S = 0.5
"""Added to what a prompt is expected to take elsewhere, before it is given up."""


class PrefillPeer(Protocol):
    """Another engine of the same model, which computes prompts and sends their blocks."""

    def prefill_s(self, num_tokens: int) -> float | None:
        """Seconds in which it would have computed so many tokens, those it was asked for before included.

        None where it cannot be reached; 0 before it was measured.
        """
        ...

    def prefill(self, sequence: Sequence, names: list[bytes], scope: bytes) -> KVFetch | None:
        """Have a prompt computed up to the last of the blocks named, and these sent; None where that is not possible.

        See `KVConnector.fetch`.
        """
        ...


class PrefillApart:
    """Asks the peer where that pays.

    Args:
        peer: The other engine.
        config: How this engine schedules.
        step_time: Of this engine; of the peer too, until that was measured.
        running: The scheduler's own, current collection.
        chosen: Which prompts it is asked for.
    """

    def __init__(
        self,
        peer: PrefillPeer,
        config: EngineConfig,
        step_time: StepTimeModel,
        running: Collection[Sequence],
        chosen: DisaggregationConfig,
    ) -> None:
        self._peer = peer
        self._config = config
        self._step_time = step_time
        self._running = running
        self._chosen = chosen
        self.asked = 0
        """Prompts that the peer was asked for."""

    def ask(self, sequence: Sequence, first: int, scope: bytes) -> bool:
        """Have the peer compute a new prompt's blocks from entry `first` on, where that pays: it is its fetch."""
        names = sequence.block_names[first:]
        start, count = first * BLOCK_SIZE, len(names) * BLOCK_SIZE
        adapter = sequence.request.scope.adapter  # the peer has none
        if adapter or count < self._chosen.min_tokens or sequence.num_computed_tokens:
            return False
        there_s = self._peer.prefill_s(sequence.num_prompt - start)
        if there_s is None:
            return False
        here_s, protects = self._here(start, count)
        there_s = there_s or here_s
        if self._chosen.mode == "auto" and not (protects and there_s <= here_s):
            return False
        sequence.fetch = self._peer.prefill(sequence, names, scope)
        sequence.patience_s = 2 * max(here_s, there_s) + _SPARE_S
        self.asked += sequence.fetch is not None
        return sequence.fetch is not None

    def _here(self, start: int, count: int) -> tuple[float, bool]:
        """Seconds until this engine would have computed `count` tokens, and whether decodes run meanwhile."""
        step, waiting = StepBuilder(self._config, self._step_time), 0
        for sequence in self._running:
            uncomputed = sequence.num_tokens - sequence.num_computed_tokens
            if uncomputed == 1:
                step.shape.add(sequence.num_computed_tokens, 1)
                step.tokens_left -= 1
            else:
                waiting += max(0, uncomputed)
        protects = step.shape.decode_rows > 0
        chunk = max(2, step.share(start, count + waiting))
        step.shape.add(start + count // 2, chunk)  # in the middle its attention takes what it takes on average
        return math.ceil((count + waiting) / chunk) * self._step_time.predict(step.shape), protects
