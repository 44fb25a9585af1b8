"""Eviction by value.

The value of a block is what it would take to compute it again, times the probability that it is asked for before it
would be evicted anyway. It falls with time: nothing is kept for good, and where all is dear the cheapest goes.

    spent      leaves of paths that nobody will come back to                    first of all
    ordinary   leaves of requests without a session, common parts, adapters     oldest first, as LRU has it
    kept       leaves of sessions' paths                                        the least valuable of those looked at

A *leaf* is an idle block that no cached block follows. Only leaves go, and what was before one is a leaf then. The
value changes with time for each session in its own way, so no order of it lasts. Instead of looking at all, the first
eviction at each moment looks at the next `LOOKS` of them in rotation: with fewer than that the choice is exact.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping

from kvarn.costs.step_times import pairs
from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.memory.tiers import KVTiers
from kvarn.engine.sessions.branch import Branch
from kvarn.engine.sessions.gaps import GapEstimate, Gaps
from kvarn.engine.step_time import StepTimeModel
from kvarn.shapes import BLOCK_SIZE

LOOKS = 48
_RATE_S = 60.0
"""Seconds over which the rate of evictions is averaged."""
_UNKNOWN_S = 1e-3  # for a block before anything was measured
_SHORTEST_STAY_S, _LONGEST_STAY_S = 1.0, 3600.0
_ORDINARY = GapEstimate(mu=3.0, sigma=2.0, share=0.3)
_STRENGTH, _KEEP = 1000.0, 0.9999


class RecomputeCosts:
    """Seconds to have a block again: computed, or loaded from a tier that holds it."""

    def __init__(self, step_time: StepTimeModel, tiers: KVTiers | None) -> None:
        self._step_time = step_time
        self._tiers = tiers

    def seconds(self, node: PrefixNode | None) -> float:
        start = 0 if node is None else (node.depth - 1) * BLOCK_SIZE
        computed = self._step_time.fitted.prompt_s(BLOCK_SIZE, pairs(start, BLOCK_SIZE)) or _UNKNOWN_S
        if node is None or self._tiers is None or not self._tiers.connector.holds(node.hash):
            return computed
        connector = self._tiers.connector
        far_s = 0.0 if connector.is_loadable(node.hash) else connector.fetch_s(1)
        return min(computed, self._tiers.transfer_s + far_s)


class ByValue:
    """Evicts the block of the least value.

    Args:
        nodes: The prefix cache's node of each of its blocks; blocks without one hold adapters.
        seconds: What it takes to have a node's block again; None: a block of an adapter.
    """

    def __init__(self, nodes: Mapping[int, PrefixNode], seconds: Callable[[PrefixNode | None], float]) -> None:
        self._nodes = nodes
        self._seconds = seconds
        self._idle: dict[int, tuple[int, float]] = {}  # number of its release, and when that was
        self._releases = 0
        self._spent: dict[int, None] = {}
        self._ordinary: list[tuple[int, int]] = []  # heap of (number of its release, block); some are idle no more
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._cheapest: list[tuple[float, int, int]] = []  # heap of (value, number, block), as of `_as_of_s`
        self._as_of_s = -1.0
        self._looked: set[int] = set()  # kept blocks whose value as of then is known; behind the others in `_kept`
        self._evictions, self._evicted_s = 0.0, 0.0
        self._stay_s = _LONGEST_STAY_S
        self._gaps = {Branch.ONCE: Gaps(_KEEP), Branch.COMMON: Gaps(_KEEP)}
        """Gaps of ordinary blocks; each block counts."""
        self._estimates = dict.fromkeys(self._gaps, _ORDINARY)

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._idle

    def add(self, block: int, now: float) -> None:
        self._releases += 1
        self._idle[block] = (self._releases, now)
        node = self._nodes.get(block)
        if node is None or not node.children:
            self._add_leaf(block, node, now)

    def discard(self, block: int) -> None:
        del self._idle[block]
        self._kept.pop(block, None)
        self._looked.discard(block)
        self._spent.pop(block, None)

    def removed(self, node: PrefixNode) -> None:
        parent = node.parent
        if parent is not None and not parent.children and parent.block in self._idle:
            self._add_leaf(parent.block, parent, self._as_of_s)

    def spend(self, node: PrefixNode) -> None:
        if self._kept.pop(node.block, self) is None:
            self._looked.discard(node.block)
            self._spent[node.block] = None

    def reused(self, node: PrefixNode, now: float) -> None:
        gaps = self._gaps.get(node.branch) if node.branch is not None else None
        if gaps is None or node.block not in self._idle:
            return
        gap_s, count, before = now - self._idle[node.block][1], 1, node.parent
        while before is not None and before.block in self._idle:
            count, before = count + 1, before.parent
        gaps.returned(gap_s, count)

    def first(self, now: float) -> int | None:
        if self._spent:
            return next(iter(self._spent))
        if now != self._as_of_s:
            self._look_anew(now)
        oldest, cheapest = self._oldest(), self._least_valued()
        if oldest is None or cheapest is None:
            chosen = oldest if cheapest is None else cheapest[1]
        else:
            chosen = oldest if self.value(oldest) <= cheapest[0] else cheapest[1]
        if chosen is not None:
            self._count(chosen, now)
        return chosen

    def check_integrity(self) -> None:
        nodes = ((block, self._nodes.get(block)) for block in self._idle)
        leaves = [block for block, node in nodes if node is None or not node.children]
        ordinary = {block for number, block in self._ordinary if self._is_current(number, block)}
        if sorted([*self._spent, *self._kept, *ordinary]) != sorted(leaves):
            raise IntegrityError("an idle block that could go is in no order, or in two")

    def _add_leaf(self, block: int, node: PrefixNode | None, now: float) -> None:
        branch = Branch.ONCE if node is None or node.branch is None else node.branch
        if branch.has_ended:
            self._spent[block] = None
        elif branch in self._gaps:
            if len(self._ordinary) > 2 * len(self._idle) + LOOKS:
                self._ordinary = [(number, each) for number, each in self._ordinary if self._is_current(number, each)]
                heapq.heapify(self._ordinary)
            heapq.heappush(self._ordinary, (self._idle[block][0], block))
        else:
            self._kept[block] = None
            if now == self._as_of_s:
                self._look_at(block)

    # What goes --------------------------------------------------------------------------------------------------------

    def _look_anew(self, now: float) -> None:
        self._as_of_s = now
        self._cheapest.clear()
        self._looked.clear()
        if self._evictions:
            fresh = self._evictions * math.exp((self._evicted_s - now) / _RATE_S)
            stay_s = len(self._idle) * _RATE_S / max(fresh, 1e-9) / 2  # the average one is half-way through its stay
            self._stay_s = min(max(stay_s, _SHORTEST_STAY_S), _LONGEST_STAY_S)
        self._estimates = {branch: gaps.estimate(_ORDINARY, _STRENGTH) for branch, gaps in self._gaps.items()}

    def _oldest(self) -> int | None:
        heap = self._ordinary
        while heap and not self._is_current(*heap[0]):
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def _least_valued(self) -> tuple[float, int] | None:
        """The least of those looked at, where some of them are left; more are looked at when half of them are gone."""
        heap = self._cheapest
        while heap and not (heap[0][2] in self._kept and self._is_current(*heap[0][1:])):
            heapq.heappop(heap)
        if len(heap) <= LOOKS // 2:
            for _ in range(min(LOOKS, len(self._kept) - len(self._looked))):
                block = next(iter(self._kept))
                self._kept.move_to_end(block)
                self._look_at(block)
        return (heap[0][0], heap[0][2]) if heap else None

    def _look_at(self, block: int) -> None:
        heapq.heappush(self._cheapest, (self.value(block), self._idle[block][0], block))
        self._looked.add(block)

    def value(self, block: int) -> float:
        node = self._nodes.get(block)
        branch = Branch.COMMON if node is None else node.branch or Branch.ONCE
        estimate = self._estimates.get(branch)
        if estimate is None:
            return self._seconds(node) * branch.probability(self._as_of_s, self._stay_s)
        return self._seconds(node) * estimate.probability(self._as_of_s - self._idle[block][1], self._stay_s)

    def _count(self, block: int, now: float) -> None:
        self._evictions = self._evictions * math.exp((self._evicted_s - now) / _RATE_S) + 1.0
        self._evicted_s = now
        node = self._nodes.get(block)
        gaps = None if node is None or node.branch is None else self._gaps.get(node.branch)
        if gaps is not None:
            gaps.ended()

    def _is_current(self, number: int, block: int) -> bool:
        released = self._idle.get(block)
        return released is not None and released[0] == number
