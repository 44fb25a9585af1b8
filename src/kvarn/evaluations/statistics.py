"""Comparisons of two versions: on the same items of a set, and by the feedback of their users. Pure.

Sources: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile intervals);
Q. McNemar, Psychometrika 12, 1947 (the exact form is a sign test); E. B. Wilson, JASA 22, 1927; R. G. Newcombe,
Interval estimation for the difference between independent proportions, Statistics in Medicine 17, 1998 (method 10).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from kvarn.rollouts.statistics import SignTest

RESAMPLES = 1000
_Z95 = 1.959963984540054


class Interval(msgspec.Struct, frozen=True):
    """Bounds of a value, with 95 % confidence."""

    low: float
    high: float


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run's scores against another's, for the items that both have."""

    items: int
    score: float
    baseline_score: float
    difference: float
    """Mean over the items: `score` - `baseline_score`."""
    interval: Interval
    """Interval of the difference: paired bootstrap of the items, the same numbers each time."""
    better: int
    worse: int
    """Items that passed in one of the runs only."""
    p_value: float
    """McNemar's exact test of passes: chance of so uneven a split if the two are alike. Holds for one look."""
    p_value_any_time: float
    """The same, however often runs are looked at in between (an e-value's inverse, see `rollouts/statistics.py`)."""
    verdict: Literal["better", "worse", "no difference shown"]


def compare_paired(
    scores: Sequence[float], baseline: Sequence[float], passed: Sequence[bool], baseline_passed: Sequence[bool]
) -> PairedComparison:
    """Compare two runs item by item; all four have one entry for each item, at least one."""
    differences = [one - other for one, other in zip(scores, baseline, strict=True)]
    test = SignTest()
    for one, other in zip(passed, baseline_passed, strict=True):
        test.add(stable=other, candidate=one)
    interval = bootstrap_mean(differences)
    verdict: Literal["better", "worse", "no difference shown"] = "no difference shown"
    if interval.low > 0:
        verdict = "better"
    elif interval.high < 0:
        verdict = "worse"
    count = len(differences)
    return PairedComparison(
        items=count,
        score=sum(scores) / count,
        baseline_score=sum(baseline) / count,
        difference=sum(differences) / count,
        interval=interval,
        better=test.candidate,
        worse=test.stable,
        p_value=mcnemar(test.candidate, test.stable),
        p_value_any_time=min(1.0, math.exp(-test.log_evidence_either_way)),
        verdict=verdict,
    )


def bootstrap_mean(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Percentile interval of a mean, by resampling."""
    source, count = random.Random(seed), len(values)
    means = sorted(math.fsum(source.choices(values, k=count)) / count for _ in range(RESAMPLES))
    cut = round(RESAMPLES * 0.025)
    return Interval(means[cut], means[-cut - 1])


def mcnemar(one: int, other: int) -> float:
    """Two-sided chance that pairs which differ split so unevenly, were both ways equally likely."""
    tosses = one + other
    tail = sum(math.comb(tosses, heads) for heads in range(min(one, other) + 1))
    return min(1.0, 2 * tail / (1 << tosses))


def wilson(successes: int, count: int) -> Interval:
    """Interval of a proportion."""
    if not count:
        return Interval(0.0, 1.0)
    share, square = successes / count, _Z95 * _Z95
    middle = share + square / (2 * count)
    spread = _Z95 * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    whole = 1 + square / count
    return Interval(max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole))


def newcombe(successes: int, count: int, other_successes: int, other_count: int) -> Interval:
    """Interval of the difference of two independent proportions: the first less the second."""
    if not count or not other_count:
        return Interval(-1.0, 1.0)
    share, other_share = successes / count, other_successes / other_count
    first, second = wilson(successes, count), wilson(other_successes, other_count)
    difference = share - other_share
    return Interval(
        difference - math.hypot(share - first.low, second.high - other_share),
        difference + math.hypot(first.high - share, other_share - second.low),
    )
