"""Placement of a layer's experts on ranks, and of tokens on those (as DeepSeek's EPLB).

Ranks hold whole experts. Where experts are hot, the busiest rank holds the others up; so some are held by several
ranks, which share their tokens. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class ExpertPlacement:
    ranks: tuple[tuple[int, ...], ...]
    """By expert: the ranks that hold it, in ascending order; at least one."""

    @staticmethod
    def even(num_experts: int, world_size: int) -> ExpertPlacement:
        """Each expert once: as many side by side for each rank."""
        bounds = [num_experts * rank // world_size for rank in range(world_size + 1)]
        counts = [after - before for before, after in pairwise(bounds)]
        return ExpertPlacement(tuple((rank,) for rank, count in enumerate(counts) for _ in range(count)))

    def held(self, rank: int) -> list[int]:
        return [expert for expert, ranks in enumerate(self.ranks) if rank in ranks]

    def loads(self, tokens: Sequence[int], world_size: int) -> list[float]:
        """Tokens that each rank computes, where each expert is given so many."""
        loads = [0.0] * world_size
        for ranks, count in zip(self.ranks, tokens, strict=True):
            for rank in ranks:
                loads[rank] += count / len(ranks)
        return loads

    @cached_property
    def _table(self) -> npt.NDArray[np.int64]:
        """[experts, most ranks of one]; the last rank repeated."""
        width = max(map(len, self.ranks))
        return np.array([[*ranks, *[ranks[-1]] * (width - len(ranks))] for ranks in self.ranks])

    @cached_property
    def _num_ranks(self) -> npt.NDArray[np.int64]:
        return np.array([len(ranks) for ranks in self.ranks])

    def owners(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rank that computes each of N rows sorted by expert, [N]. counts: [experts], rows of each.

        Ranks that hold the same expert take equal parts of its rows, side by side.
        """
        experts = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(experts)) - (counts.cumsum() - counts)[experts]
        owners: npt.NDArray[np.int64] = self._table[experts, places * self._num_ranks[experts] // counts[experts]]
        return owners


def balance_experts(tokens: Sequence[int], world_size: int, redundant: int = 0) -> ExpertPlacement:
    """A placement for experts that are given so many tokens each: the busiest rank has never more than with
    `ExpertPlacement.even`, nor with fewer redundant places.

    Args:
        tokens: Of each expert, as measured.
        world_size: Ranks.
        redundant: Places beyond one for each expert, for the hottest ones. No rank holds an expert twice.
    """
    plans = [ExpertPlacement.even(len(tokens), world_size)]
    plans += [_greedy(tokens, world_size, places) for places in range(redundant + 1)]
    return min(plans, key=lambda plan: max(plan.loads(tokens, world_size)))


def _greedy(tokens: Sequence[int], world_size: int, redundant: int) -> ExpertPlacement:
    """All redundant places are given away, each to the expert whose ranks have the most to do for it; then each expert
    goes to the ranks that have the least to do, the hottest first."""
    copies = [1] * len(tokens)
    for _ in range(redundant):
        able = [expert for expert, count in enumerate(copies) if count < world_size]
        if able:
            copies[max(able, key=lambda expert: (tokens[expert] / copies[expert], -expert))] += 1
    ranks: list[list[int]] = [[] for _ in tokens]
    loads, places = [0.0] * world_size, [0] * world_size
    capacity = -(-sum(copies) // world_size)
    # Those of several places first: there are ranks enough for them as long as all have room.
    for expert in sorted(range(len(tokens)), key=lambda each: (-copies[each], -tokens[each] / copies[each], each)):
        for _ in range(copies[expert]):
            free = [rank for rank in range(world_size) if places[rank] < capacity and rank not in ranks[expert]]
            if free:
                rank = min(free, key=lambda each: (loads[each], places[each], each))
                ranks[expert].append(rank)
                loads[rank] += tokens[expert] / copies[expert]
                places[rank] += 1
    return ExpertPlacement(tuple(tuple(sorted(each)) for each in ranks))
