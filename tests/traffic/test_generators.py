"""Draws, arrivals and presets: equal everywhere, and with the figures that they claim."""

from __future__ import annotations

import hashlib
import math
import statistics
from itertools import islice

import msgspec
import numpy as np
import pytest

from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import turns_of
from kvarn.traffic.distributions import Fixed, LogNormal, Quantiles, Uniform, tokens
from kvarn.traffic.draws import Draws, exp, log, normal_quantile
from kvarn.traffic.presets import PRESETS, traffic_of


def test_elementary_functions_are_those_of_the_c_library_but_for_the_last_bits():
    x = np.concatenate([10.0 ** np.linspace(-300, 300, 601), np.linspace(0.4, 2.5, 500)])
    np.testing.assert_allclose(log(x), np.log(x), rtol=4e-15, atol=4e-16)
    y = np.linspace(-600, 600, 2001)
    np.testing.assert_allclose(exp(y), np.exp(y), rtol=3e-13)
    normal = statistics.NormalDist()
    shares = [1e-12, 1e-5, 0.02, 0.03, 0.3, 0.5, 0.9, 0.99, 1 - 1e-9]
    np.testing.assert_allclose(normal_quantile(np.array(shares)), [normal.inv_cdf(p) for p in shares], atol=1e-7)


def test_the_same_seed_gives_the_same_bits_on_every_machine():
    draws = Draws(7, 1)
    blocks = [draws.uniform(500), draws.exponential(500), draws.normal(500), next(draws.gamma(0.4, 500))]
    digest = hashlib.sha256(b"".join(block.tobytes() for block in blocks)).hexdigest()
    assert digest == "90904234cf3166e1f129c88cd55cdd1c6ddc6700ce2b676aedfb448f08c72b96"
    traffic = [each for name in PRESETS for each in islice(traffic_of(name, rps=3, seed=5), 4)]
    turns = [(turn.segments, turn.output_tokens, turn.gap_s) for each in traffic for turn in turns_of(each)]
    made = msgspec.msgpack.encode([[each.begins_s for each in traffic], turns])
    digest = hashlib.sha256(made).hexdigest()
    assert digest == "eaa4e964cd5f31f5d2f58f85c64ca32f69675fe908a1554f9b5b92b4f80c432b"


def test_lengths_do_not_move_arrivals():
    moments = [[each.begins_s for each in islice(traffic_of(name, rps=3), 50)] for name in ("azure-conv", "azure-code")]
    assert moments[0] == moments[1]


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_their_mean_and_their_burstiness(cv):
    moments = np.array(list(islice(arrivals(ArrivalPattern(cv=cv), 4.0, 1), 40_000)))
    gaps = np.diff(moments)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_a_daily_wave_rises_above_its_mean_and_falls_below_it():
    moments = np.array(list(arrivals(ArrivalPattern(swing=0.5, period_s=1000.0), 20.0, 3, duration_s=10_000.0)))
    counts = np.bincount((moments % 1000 // 125).astype(int), minlength=8) / 10 / 125 / 20
    expected = [1 + 0.5 * 2 / math.pi * math.sqrt(2) * math.sin(2 * math.pi * (k + 0.5) / 8) for k in range(8)]
    assert counts == pytest.approx(expected, abs=0.08)


def test_a_markov_modulated_rate_keeps_its_mean_and_is_overdispersed():
    pattern = ArrivalPattern(peak=4.0, busy_share=0.2, busy_s=10.0)
    moments = np.array(list(arrivals(pattern, 10.0, 2, duration_s=20_000.0)))
    counts = np.bincount(moments.astype(int))
    assert counts.mean() == pytest.approx(10.0, rel=0.1)
    assert counts.var() / counts.mean() > 3
    wave = ArrivalPattern.parse("gamma:2+markov:3+diurnal:0.5")
    both = list(arrivals(wave, 10.0, 2, duration_s=5_000.0))
    assert both == sorted(both)
    assert len(both) > 10_000


def test_patterns_are_read_and_written():
    for text in ("poisson", "uniform", "gamma:2", "markov:3", "diurnal:0.5", "gamma:0.5+diurnal:0.25"):
        assert str(ArrivalPattern.parse(text)) == text
    for text, says in (
        ("gamma:x", "such as gamma"),
        ("weekly", "is no pattern"),
        ("markov:9", "from 1 to 5"),
        ("", "is no"),
    ):
        with pytest.raises(ValueError, match=says):
            ArrivalPattern.parse(text)
    with pytest.raises(ValueError, match="swing is from 0"):
        ArrivalPattern.parse("diurnal:1")


def test_distributions_have_their_quantiles():
    drawn = tokens(LogNormal.of_mean(1500, 2048), Draws(1), 50_000)
    assert statistics.median(drawn) == pytest.approx(1500, rel=0.02)
    assert statistics.fmean(drawn) == pytest.approx(2048, rel=0.02)
    drawn = tokens(Uniform.whole(3, 5), Draws(1), 3000)
    assert [drawn.count(number) / 1000 for number in (2, 3, 4, 5, 6)] == pytest.approx([0, 1, 1, 1, 0], abs=0.1)
    assert tokens(Fixed(7), Draws(1), 2) == [7, 7]
    drawn = tokens(Quantiles(((0, 10), (0.5, 100), (1, 1000))), Draws(1), 50_000)
    assert (min(drawn), max(drawn)) == (10, 1000)
    assert statistics.quantiles(drawn, n=4) == pytest.approx([55, 100, 550], rel=0.03)


FIGURES = [
    # rate, median prompt, mean prompt, median answer, mean answer, part of the prompts that went before
    ("azure-conv", 6, 1020, 1155, 129, 211, 0.0),
    ("azure-code", 6, 1500, 2000, 13, 28, 0.0),
    ("sharegpt", 6, 69, 161, 225, 335, 0.0),
    ("mooncake", 6, 6900, 12_035, 350, 343, 0.40),
    ("agentic", 6, 142_000, 139_000, 444, 665, 0.965),
    ("batch", 6, 1000, 1119, 200, 240, 0.36),
]


@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures[0])
def test_a_preset_has_the_figures_that_its_page_states(figures):
    name, rate, *expected, shared = figures
    traffic = list(traffic_of(name, rps=rate, duration_s=1200 if name == "mooncake" else 3600, seed=1))
    turns = [turn for each in traffic for turn in turns_of(each)]
    assert len(turns) / len(traffic) == pytest.approx(PRESETS[name].requests, rel=0.06)
    prompts, answers = [turn.prompt_tokens for turn in turns], [turn.output_tokens for turn in turns]
    found = [function(values) for values in (prompts, answers) for function in (statistics.median, statistics.fmean)]
    assert found == pytest.approx(expected, rel=0.07)
    assert cached_share(turns) == pytest.approx(shared, abs=0.05)
    assert [each.begins_s for each in traffic] == sorted(each.begins_s for each in traffic)
    if name == "agentic":
        assert cached_share(turns) > 0.96
        assert statistics.median(len(each.turns) for each in traffic) == pytest.approx(43, rel=0.08)
        with_agents = sum(any(turn.subagents for turn in each.turns) for each in traffic)
        assert with_agents / len(traffic) == pytest.approx(0.44, abs=0.06)


def cached_share(turns):
    """Part of the prompts' tokens that a cache without bounds has."""
    seen, cached = set(), 0
    for turn in turns:
        for segment in turn.segments:
            if segment.key not in seen:
                break
            cached += segment.length
        seen.update(segment.key for segment in turn.segments)
        seen.add(turn.answer_key)
    return cached / sum(turn.prompt_tokens for turn in turns)


def test_unknown_traffic_and_rates_are_refused():
    with pytest.raises(ValueError, match="take one of azure-conv"):
        traffic_of("azure", rps=1)
    with pytest.raises(ValueError, match="above 0"):
        traffic_of("azure-conv", rps=0)
