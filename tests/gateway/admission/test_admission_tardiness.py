"""Late answers make predictions careful, for a while."""

from __future__ import annotations

import pytest

from kvarn.gateway.admission.tardiness import FORGET_S, Tardiness


def test_constant_lateness_is_learned():
    tardiness = Tardiness()
    for index in range(300):
        tardiness.learn(0.3, index * 0.001)
    assert tardiness.expected_s(0.3) == pytest.approx(0.3, rel=0.05)


def test_early_answers_never_make_predictions_bolder():
    tardiness = Tardiness()
    for index in range(300):
        tardiness.learn(-0.3, index * 0.001)
    assert tardiness.expected_s(0.3) == 0


def test_without_news_it_is_forgotten_so_that_refusing_everybody_ends():
    tardiness = Tardiness()
    for index in range(300):
        tardiness.learn(60.0, index * 0.001)
    assert tardiness.expected_s(5 * FORGET_S) < 0.5
