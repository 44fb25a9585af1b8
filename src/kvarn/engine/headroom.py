"""Does a waiting sequence fit? Blocks counted against what running sequences are about to need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kvarn.engine.growth import GrowthReserve
from kvarn.engine.kv_memory import KVMemory, Placement, blocks_for
from kvarn.engine.request import Sequence


class Headroom:
    """Admission's view of the memory. `running` is the scheduler's own, always current collection."""

    def __init__(self, memory: KVMemory, running: Collection[Sequence]) -> None:
        self.growth = GrowthReserve()
        self.prompts_computed = 0
        """Prompts that the prefix cache holds in full by now: each may be what a waiting sequence begins with."""
        self._memory = memory
        self._running = running

    def spare_blocks(self) -> float:
        """Available blocks that nobody is about to need.

        Set aside are those that running sequences still take to their last known token, and some for the growth of
        their answers.
        """
        return self._memory.pool.num_available - sum(self._promised(sequence) for sequence in self._running)

    def wanted_blocks(self, sequence: Sequence, placement: Placement) -> float:
        """Spare blocks without which a waiting sequence does not start. Alone, it needs none to grow into."""
        growth = self.growth.blocks(sequence) if self._running else 0.0
        return placement.blocks_needed + growth

    def missing_blocks(self, sequence: Sequence) -> float:
        """Blocks by which a waiting sequence does not fit; zero or less where it does."""
        return self.wanted_blocks(sequence, self._memory.placement(sequence)) - self.spare_blocks()

    def fits_without(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Whether a waiting sequence fits once these running ones are gone.

        Blocks that it shares with them are not freed by that: it would hold them itself.
        """
        placement = self._memory.placement(sequence)
        shared = set(placement.blocks)
        leaving = Counter(block for other in others for block in other.blocks if block not in shared)
        freed = sum(1 for block, count in leaving.items() if count == self._memory.pool.references(block))
        promised = sum(self._promised(other) for other in others)
        return self.wanted_blocks(sequence, placement) <= self.spare_blocks() + freed + promised

    def fitting_placement(self, sequence: Sequence, spare: float) -> Placement | None:
        """Where the sequence would start if it fits now, without asking the prefix cache again in vain."""
        if sequence.last_look == self.prompts_computed and sequence.blocks_wanted > spare:
            return None
        placement = self._memory.placement(sequence)
        if self.wanted_blocks(sequence, placement) > spare:
            sequence.blocks_wanted, sequence.last_look = placement.blocks_needed, self.prompts_computed
            return None
        return placement

    def _promised(self, sequence: Sequence) -> float:
        known = blocks_for(sequence.num_tokens) - len(sequence.blocks)
        return known + self.growth.blocks(sequence)
