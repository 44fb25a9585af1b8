"""Moments of faults."""

from __future__ import annotations

import random
import statistics

from kvarn.simulator.faults import FaultMoment, exponential, fault_moments
from kvarn.simulator.scenario import FaultConfig
from simulated_fleet import scenario


def _moments(faults: list[FaultConfig], duration_s: float, seed: int = 0) -> list[FaultMoment]:
    return fault_moments(scenario(faults=faults, duration_s=duration_s).model_copy(update={"seed": seed}))


def test_scheduled_faults_come_at_their_times_in_order() -> None:
    faults = [FaultConfig(kind="hang", at_s=20), FaultConfig(kind="kill", at_s=5)]
    assert [(each.at_s, each.fault.kind) for each in _moments(faults, 60)] == [(5, "kill"), (20, "hang")]


def test_faults_at_a_rate_are_as_many_as_it_says_and_the_same_for_a_seed() -> None:
    fault = FaultConfig(kind="kill", per_hour=60)
    moments = _moments([fault], 360_000, 1)
    assert abs(len(moments) - 6000) < 4 * 6000**0.5
    assert moments == _moments([fault], 360_000, 1)
    assert moments != _moments([fault], 360_000, 2)


def test_another_fault_does_not_move_the_first() -> None:
    first, other = FaultConfig(kind="kill", per_hour=6), FaultConfig(kind="slow", per_hour=6)
    both = _moments([first, other], 36_000, 3)
    assert [each for each in both if each.fault is first] == _moments([first], 36_000, 3)


def test_the_variates_are_exponential() -> None:
    chance = random.Random(7)
    drawn = sorted(exponential(chance) for _ in range(20_000))
    assert abs(statistics.fmean(drawn) - 1) < 0.03
    for probability, quantile in ((0.25, 0.28768), (0.5, 0.69315), (0.9, 2.30259), (0.99, 4.60517)):
        assert abs(drawn[int(probability * len(drawn))] / quantile - 1) < 0.08
