"""Moments of faults."""

from __future__ import annotations

import random
import statistics

from kvarn.simulator.faults import exponential, fault_moments
from kvarn.simulator.scenario import FaultConfig


def test_scheduled_faults_come_at_their_times_in_order() -> None:
    faults = [FaultConfig(kind="hang", at_s=20), FaultConfig(kind="kill", at_s=5)]
    assert [(each.at_s, each.fault.kind) for each in fault_moments(faults, 0, 60)] == [(5, "kill"), (20, "hang")]


def test_faults_at_a_rate_are_as_many_as_it_says_and_the_same_for_a_seed() -> None:
    fault = FaultConfig(kind="kill", per_hour=60)
    moments = fault_moments([fault], 1, 100 * 3600)
    assert abs(len(moments) - 6000) < 4 * 6000**0.5
    assert moments == fault_moments([fault], 1, 100 * 3600)
    assert moments != fault_moments([fault], 2, 100 * 3600)


def test_another_fault_does_not_move_the_first() -> None:
    first, other = FaultConfig(kind="kill", per_hour=6), FaultConfig(kind="slow", per_hour=6)
    both = fault_moments([first, other], 3, 36000)
    assert [each for each in both if each.fault is first] == fault_moments([first], 3, 36000)


def test_the_variates_are_exponential() -> None:
    chance = random.Random(7)
    drawn = sorted(exponential(chance) for _ in range(20_000))
    assert abs(statistics.fmean(drawn) - 1) < 0.03
    for probability, quantile in ((0.25, 0.28768), (0.5, 0.69315), (0.9, 2.30259), (0.99, 4.60517)):
        assert abs(drawn[int(probability * len(drawn))] / quantile - 1) < 0.08
