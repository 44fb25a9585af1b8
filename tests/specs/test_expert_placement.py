"""Which ranks hold which experts: each somewhere, none twice on a rank, the busiest rank no busier than need be."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.specs.expert_placement import ExpertPlacement, balance_experts
from profiles import examples

loads = st.lists(st.integers(0, 1000), min_size=1, max_size=40)


@settings(max_examples=examples(150), derandomize=True, deadline=None)
@given(tokens=loads, world_size=st.sampled_from([1, 2, 4, 8]), redundant=st.integers(0, 20))
def test_every_expert_has_a_place_and_no_rank_is_busier_than_without_a_plan(
    tokens: list[int], world_size: int, redundant: int
) -> None:
    placement = balance_experts(tokens, world_size, redundant)
    even = ExpertPlacement.even(len(tokens), world_size)
    assert all(ranks == tuple(sorted(set(ranks))) and ranks for ranks in placement.ranks)
    assert sum(map(len, placement.ranks)) <= len(tokens) + redundant
    places = [len(placement.held(rank)) for rank in range(world_size)]
    assert max(places) <= -(-(len(tokens) + redundant) // world_size)
    own = placement.loads(tokens, world_size)
    assert max(own) <= max(even.loads(tokens, world_size))
    assert abs(sum(own) - sum(tokens)) < 1e-6


def test_a_hot_expert_is_shared_by_ranks() -> None:
    placement = balance_experts([800, 50, 50, 50, 10, 10, 10, 20], 4, redundant=4)
    assert len(placement.ranks[0]) == 4
    assert max(placement.loads([800, 50, 50, 50, 10, 10, 10, 20], 4)) <= 265
    assert max(ExpertPlacement.even(8, 4).loads([800, 50, 50, 50, 10, 10, 10, 20], 4)) == 850


def test_without_redundant_places_hot_experts_are_kept_apart() -> None:
    assert balance_experts([9, 9, 1, 1], 2).loads([9, 9, 1, 1], 2) == [10, 10]


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=3, max_size=12), data=st.data())
def test_rows_go_to_ranks_that_hold_their_expert_in_equal_parts(counts: list[int], data: Any) -> None:
    ranks = st.sets(st.integers(0, 3), min_size=1).map(lambda each: tuple(sorted(each)))
    placement = ExpertPlacement(tuple(data.draw(ranks) for _ in counts))
    owners = placement.owners(np.array(counts)).tolist()
    assert len(owners) == sum(counts)
    first = 0
    for expert, count in enumerate(counts):
        own = owners[first : first + count]
        first += count
        assert own == sorted(own)
        shares = [own.count(rank) for rank in placement.ranks[expert]]
        assert sum(shares) == count
        assert max(shares) - min(shares) <= 1
