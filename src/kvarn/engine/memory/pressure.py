"""Fit of waiting sequences into the KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kvarn.engine.memory.kv_cache_manager import KVCacheManager, PrefixMatch, blocks_for
from kvarn.engine.request import Sequence
from kvarn.shapes import BLOCK_SIZE


class GrowthReserve:
    """The share of the outstanding output tokens that blocks are kept for.

    Lengths of answers are unknown. Keeping blocks for `max_tokens` of each wastes most of the memory; keeping
    none fills it with sequences that soon preempt each other and compute everything twice. So the share of the possible
    growth that is kept free is learned: it falls slowly while memory suffices, and rises when a sequence had to be
    preempted (SGLang's `new_token_ratio`).
    """

    START = 0.1
    MIN = 0.02
    FALL = 0.998
    """Factor of each step without a preemption: half in about 350 steps."""
    RISE = 0.02
    """Added for each step that preempted for want of memory."""
    MAX_OUTPUT = 2048
    """Output tokens counted for one answer at most. Who gives no limit gets the whole context as one, and hardly ever
    uses it (SGLang clips its estimate in the same way)."""

    def __init__(self) -> None:
        self.share = self.START

    def observe(self, preempted: bool) -> None:
        if preempted:
            self.share = min(1.0, self.share + self.RISE)
        else:
            self.share = max(self.MIN, self.share * self.FALL)

    def advance(self, steps: int) -> None:
        """So many steps preempted nothing."""
        for _ in range(steps):
            if self.share == self.MIN:
                return
            self.observe(preempted=False)

    def blocks(self, sequence: Sequence) -> float:
        """Blocks to keep for the rest of this sequence's answer."""
        outstanding = sequence.num_prompt + sequence.request.sampling.max_tokens - sequence.num_tokens
        return self.share * min(outstanding, self.MAX_OUTPUT) / BLOCK_SIZE


class MemoryReserve:
    """Memory that a waiting sequence may take. `running` is the scheduler's own, current collection."""

    def __init__(self, memory: KVCacheManager, running: Collection[Sequence]) -> None:
        self.growth = GrowthReserve()
        self.prefix_changes = 0
        """Counts prompts computed to their end, and adapters loaded: each may be what a waiting sequence needs."""
        self._memory = memory
        self._running = running

    def spare_blocks(self) -> float:
        """Available blocks, less those that running sequences still need to their last known token and some for
        their answers."""
        return self._memory.pool.num_available - sum(self._promised(sequence) for sequence in self._running)

    def wanted_blocks(self, sequence: Sequence, match: PrefixMatch) -> float:
        """Spare blocks without which a waiting sequence does not start. Alone, it needs none to grow into."""
        growth = self.growth.blocks(sequence) if self._running else 0.0
        return match.blocks_needed + growth

    def missing_blocks(self, sequence: Sequence) -> float:
        return self.wanted_blocks(sequence, self._memory.match_prefix(sequence)) - self.spare_blocks()

    def fits_without(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Whether a waiting sequence fits once these running ones are gone, whose shared blocks it would hold
        itself."""
        match = self._memory.match_prefix(sequence)
        shared = set(match.blocks)
        leaving = Counter(block for other in others for block in other.blocks if block not in shared)
        freed = sum(1 for block, count in leaving.items() if count == self._memory.pool.references(block))
        adapters = Counter(other.request.scope.adapter for other in others)
        freed += self._memory.adapters.blocks_freed(adapters, sequence.request.scope.adapter)
        promised = sum(self._promised(other) for other in others)
        return self.wanted_blocks(sequence, match) <= self.spare_blocks() + freed + promised

    def fitting_match(self, sequence: Sequence, spare: float) -> PrefixMatch | None:
        """Start of the sequence if it fits now; the prefix cache is not asked again in vain."""
        if sequence.seen_prefix_changes == self.prefix_changes and sequence.blocks_wanted > spare:
            return None
        match = self._memory.match_prefix(sequence)
        if self.wanted_blocks(sequence, match) > spare:
            sequence.blocks_wanted, sequence.seen_prefix_changes = match.blocks_needed, self.prefix_changes
            return None
        return match

    def _promised(self, sequence: Sequence) -> float:
        # Rejected proposals leave blocks behind its last token: it grows into those first.
        known = blocks_for(sequence.num_tokens) - len(sequence.blocks)
        return max(0.0, known + self.growth.blocks(sequence))
