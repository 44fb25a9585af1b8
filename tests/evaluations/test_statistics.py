"""Comparisons agree with scipy and with published examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvarn.evaluations.statistics import bootstrap_mean, compare_paired, mcnemar, newcombe, wilson


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (7, 3), (3, 7), (0, 12), (40, 61)])
def test_mcnemar_is_the_exact_sign_test(one: int, other: int) -> None:
    wanted = stats.binomtest(one, one + other, 0.5).pvalue if one + other else 1.0
    assert mcnemar(one, other) == pytest.approx(wanted)


@pytest.mark.parametrize(("successes", "count"), [(0, 10), (3, 10), (10, 10), (81, 263)])
def test_wilson_agrees_with_scipy(successes: int, count: int) -> None:
    wanted = stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
    found = wilson(successes, count)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_nothing_is_known_of_a_proportion_of_none() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    assert (newcombe(1, 1, 0, 0).low, newcombe(1, 1, 0, 0).high) == (-1.0, 1.0)


@pytest.mark.parametrize(  # Newcombe 1998, table II: cases (a), (b), (e) and (g) by method 10
    ("counts", "low", "high"),
    [
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((10, 10, 0, 20), 0.6791, 1.0),
    ],
)
def test_newcombes_intervals_are_those_he_published(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    found = newcombe(*counts)
    assert found.low == pytest.approx(low, abs=6e-5) and found.high == pytest.approx(high, abs=6e-5)


def test_the_bootstrap_agrees_with_scipy_and_with_itself() -> None:
    values = [float(each) for each in np.random.default_rng(1).choice([-1.0, -0.5, 0.0, 0.0, 1.0], 200)]
    wanted = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=2).confidence_interval
    found = bootstrap_mean(values)
    assert found.low == pytest.approx(wanted.low, abs=0.02) and found.high == pytest.approx(wanted.high, abs=0.02)
    assert bootstrap_mean(values) == found


def test_a_worse_version_is_called_worse_and_an_equal_one_is_not() -> None:
    good, bad = [1.0] * 60, [1.0] * 45 + [0.0] * 15
    worse = compare_paired(bad, good, [each == 1.0 for each in bad], [True] * 60)
    assert worse.verdict == "worse" and worse.difference == pytest.approx(-0.25)
    assert (worse.better, worse.worse) == (0, 15) and worse.p_value < 0.001 and worse.p_value_any_time < 0.01
    assert compare_paired(good, bad, [True] * 60, [each == 1.0 for each in bad]).verdict == "better"
    same = compare_paired(bad, bad, [True] * 60, [True] * 60)
    assert same.verdict == "no difference shown" and same.p_value == same.p_value_any_time == 1.0
