"""Token times of a request, and the share that met the targets."""

from __future__ import annotations

import math

import pytest

from kvarn.config.platform import SloConfig
from kvarn.observe.latency import GenerationTimer, SlidingRatio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_ttft_is_the_first_token_of_any_choice_and_tpot_the_mean_gap_after_it() -> None:
    clock = Clock()
    timer = GenerationTimer(clock, started=clock.now)
    for at, index, tokens in [(0.2, 1, 1), (0.3, 0, 1), (0.4, 1, 2), (0.5, 0, 4)]:
        clock.now = 100 + at
        timer.mark(index, tokens)
    assert timer.ttft == pytest.approx(0.2)
    assert timer.tpots() == pytest.approx([0.2 / 2, 0.2 / 4])


def test_a_gap_is_told_for_every_delta_but_a_choices_first() -> None:
    clock = Clock()
    timer = GenerationTimer(clock, started=clock.now)
    assert timer.mark(0, 1) is None
    clock.now += 0.05
    assert timer.mark(0, 1) == pytest.approx(0.05)
    assert timer.mark(1, 1) is None


@pytest.mark.parametrize(("first", "gap", "met"), [(0.5, 0.05, True), (0.51, 0.01, False), (0.1, 0.06, False)])
def test_both_targets_must_be_met(first: float, gap: float, met: bool) -> None:
    clock = Clock()
    clock.now = 0.0
    timer = GenerationTimer(clock, started=0.0)
    clock.now = first
    timer.mark(0, 1)
    clock.now = first + gap
    timer.mark(0, 1)
    assert timer.meets(SloConfig(ttft_target_s=0.5, tpot_target_s=0.0501)) is met


def test_a_request_without_tokens_misses() -> None:
    assert not GenerationTimer(Clock(), started=0.0).meets(SloConfig())


def test_the_ratio_forgets_what_left_the_window() -> None:
    clock = Clock()
    ratio = SlidingRatio(clock, window_s=60, slots=6)
    assert math.isnan(ratio.value())
    ratio.add(False)
    clock.now += 30
    ratio.add(True)
    assert ratio.value() == 0.5
    clock.now += 40
    assert ratio.value() == 1.0
    clock.now += 60
    assert math.isnan(ratio.value())
