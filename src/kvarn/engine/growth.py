"""How much memory to keep for answers that still grow.

Nobody knows how long an answer gets. Keeping room for `max_tokens` of each wastes most of the memory; keeping none
fills it with sequences that soon push each other out and compute everything twice. So the share of the possible growth
that is kept free is learned: it falls slowly while memory suffices, and rises when a sequence had to be preempted (the
idea of SGLang's `new_token_ratio`).
"""

from __future__ import annotations

from kvarn.config.schema import BLOCK_SIZE
from kvarn.engine.request import Sequence


class GrowthReserve:
    """The share of the outstanding output tokens that admission keeps blocks for."""

    START = 0.1
    LEAST = 0.02
    FALL = 0.998
    """Factor of each step without a preemption: half in about 350 steps."""
    RISE = 0.02
    """Added for each preemption."""
    LONGEST = 2048
    """Output tokens counted for one answer at most. Who gives no limit gets the whole context as one, and hardly ever
    uses it (SGLang clips its estimate in the same way)."""

    def __init__(self) -> None:
        self.share = self.START

    def observe(self, preempted: bool) -> None:
        """A step was planned, with or without running out of memory."""
        if preempted:
            self.share = min(1.0, self.share + self.RISE)
        else:
            self.share = max(self.LEAST, self.share * self.FALL)

    def blocks(self, sequence: Sequence) -> float:
        """Blocks to keep for the rest of this sequence's answer."""
        outstanding = sequence.num_prompt + sequence.request.sampling.max_tokens - sequence.num_tokens
        return self.share * min(outstanding, self.LONGEST) / BLOCK_SIZE
