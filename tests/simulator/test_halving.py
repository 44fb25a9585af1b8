"""Successive halving against trying everything."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.simulator.halving import Judge, Judgement, Search, halve
from profiles import examples

COSTS_AND_LOADS = st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.2, 2.0)), min_size=1, max_size=60)


def judge_of(candidates: Sequence[tuple[float, float]], seed: int, noise: float) -> Judge:
    """Runs of candidates (cost, load): a load above 1 misses its targets; the shorter a run, the less it knows."""

    def judge(which: Sequence[int], share: float) -> list[Judgement]:
        found = []
        for each in which:
            cost, load = candidates[each]
            error = noise * (1.0 - share) * random.Random(f"{seed} {each} {share}").uniform(-1.0, 1.0)
            found.append(Judgement(cost=cost, excess=load - 1.0 + error))
        return found

    return judge


def cheapest(candidates: Sequence[tuple[float, float]]) -> float | None:
    return min((cost for cost, load in candidates if load <= 1.0), default=None)


@settings(max_examples=examples(200), deadline=None)
@given(candidates=COSTS_AND_LOADS, seed=st.integers(0, 1000), factor=st.integers(2, 4))
def test_with_runs_that_are_right_the_best_is_that_of_trying_all(
    candidates: list[tuple[float, float]], seed: int, factor: int
) -> None:
    found = halve(len(candidates), judge_of(candidates, seed, noise=0.0), factor=factor)
    best = cheapest(candidates)
    if best is None:
        assert found.best is None and found.closest is not None
        assert candidates[found.closest][1] == min(load for _, load in candidates)
    else:
        assert found.best is not None and candidates[found.best][0] == best and found.closest is None


@settings(max_examples=examples(200), deadline=None)
@given(candidates=COSTS_AND_LOADS, seed=st.integers(0, 1000))
def test_what_is_found_meets_its_targets_however_wrong_short_runs_are(
    candidates: list[tuple[float, float]], seed: int
) -> None:
    found = halve(len(candidates), judge_of(candidates, seed, noise=1.0))
    assert (found.best is None) == (cheapest(candidates) is None)
    if found.best is not None:
        assert candidates[found.best][1] <= 1.0


def test_a_grid_with_doubtful_short_runs_comes_within_a_twentieth_of_brute_force_for_less() -> None:
    """A grid of replicas and budgets whose short runs err by a tenth."""
    grid = [
        (replicas * (1.0 + 0.01 * budget), 9.3 / (replicas * (1.0 + 0.05 * budget)))
        for replicas in range(1, 17)
        for budget in range(6)
    ]
    best = cheapest(grid)
    assert best is not None
    for seed in range(20):
        found = halve(len(grid), judge_of(grid, seed, noise=0.1))
        assert found.best is not None and grid[found.best][0] <= 1.05 * best
        assert found.length < 0.5 * len(grid), "less work than trying all"


def test_runs_are_the_same_each_time() -> None:
    grid = [(float(cost), 20.0 / cost) for cost in range(1, 30)]

    def once() -> Search:
        return halve(len(grid), judge_of(grid, 0, noise=0.2))

    assert once() == once()


def test_nothing_to_choose_among_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        halve(0, judge_of([], 0, 0.0))
