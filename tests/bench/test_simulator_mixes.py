"""The comparison of rankings, against its definition in SciPy's words: concordant pairs less discordant ones."""

from __future__ import annotations

import pytest
from benchmarks.simulator_mixes import CONFIGURATIONS, MIXES, SATURATED, kendall_tau


def test_rankings_that_agree_turn_round_or_tie():
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / (2 * 3) ** 0.5)
    assert kendall_tau([1, 1], [1, 2]) == 0.0


def test_mixes_are_the_same_for_the_same_seed_and_different_ones():
    assert len({mix.name for mix in MIXES}) == len(MIXES) == 7
    assert len({str(mix.engine) for mix in CONFIGURATIONS}) == len(CONFIGURATIONS) == 20
    for mix in (*MIXES, *SATURATED, CONFIGURATIONS[0]):
        requests = mix.requests(10.0, 3)
        assert requests and requests == mix.requests(10.0, 3)
        assert all(each.arrival_s is not None and each.arrival_s <= 10.0 for each in requests)
