"""Gaps between turns: what is learned, and the probability of return."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.engine.sessions.gaps import GapEstimate, Gaps

PRIOR = GapEstimate(mu=4.0, sigma=1.5, share=0.6)

estimates = st.builds(GapEstimate, mu=st.floats(-2, 8), sigma=st.floats(0.3, 3), share=st.floats(0, 0.98))
seconds = st.floats(0, 1e9)


@given(estimates, seconds, seconds)
def test_a_probability_of_return_is_one(estimate: GapEstimate, age_s: float, within_s: float):
    assert 0.0 <= estimate.probability(age_s, within_s) <= 1.0


@given(estimates, seconds, seconds, seconds)
def test_more_time_to_return_makes_it_no_less_likely(
    estimate: GapEstimate, age_s: float, first_s: float, more_s: float
):
    assert estimate.probability(age_s, first_s) <= estimate.probability(age_s, first_s + more_s)


@given(estimates)
def test_who_has_been_away_for_ever_does_not_return(estimate: GapEstimate):
    assert estimate.probability(1e12, 3600.0) < 1e-6


def test_the_probability_is_the_share_of_those_still_away_that_come_in_time():
    chance = random.Random(1)
    estimate = GapEstimate(mu=2.0, sigma=1.0, share=0.8)
    gaps = [math.exp(chance.gauss(2.0, 1.0)) if chance.random() < 0.8 else math.inf for _ in range(40_000)]
    away = [gap for gap in gaps if gap > 10.0]
    in_time = sum(gap <= 25.0 for gap in away) / len(away)
    assert estimate.probability(10.0, 15.0) == pytest.approx(in_time, abs=0.02)


def test_gaps_are_learned():
    chance, gaps = random.Random(2), Gaps(keep=0.999)
    for _ in range(4000):
        if chance.random() < 0.7:
            gaps.returned(math.exp(chance.gauss(1.0, 0.8)))
        else:
            gaps.ended()
    learned = gaps.estimate(PRIOR, strength=5.0)
    assert learned.mu == pytest.approx(1.0, abs=0.15)
    assert learned.sigma == pytest.approx(0.8, abs=0.15)
    assert learned.share == pytest.approx(0.7, abs=0.06)


def test_who_has_seen_little_leans_on_the_level_above():
    gaps = Gaps(keep=0.9)
    assert gaps.estimate(PRIOR, strength=3.0) == pytest.approx(PRIOR)
    gaps.returned(1.0)
    assert 0.0 < gaps.estimate(PRIOR, strength=3.0).mu < PRIOR.mu


def test_old_gaps_fade():
    gaps = Gaps(keep=0.9)
    for gap_s in [1000.0] * 50 + [1.0] * 50:
        gaps.returned(gap_s)
    assert gaps.estimate(PRIOR, strength=0.1).mu == pytest.approx(0.0, abs=0.15)
