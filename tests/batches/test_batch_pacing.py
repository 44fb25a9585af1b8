"""How long a batch that is held up pauses, and when it makes room for another."""

from __future__ import annotations

import pytest

from kvarn.batches.pacing import PARK_S, Pacing


def pauses_of(pacing: Pacing, count: int, start: float = 0.0) -> list[float]:
    """Pauses of so many refusals in a row, each at the end of the pause before."""
    now, pauses = start, []
    for _ in range(count):
        pauses.append(pacing.hold_up(now))
        now += pauses[-1]
    return pauses


def test_pauses_double_up_to_a_minute_and_begin_anew_with_an_answer() -> None:
    pacing = Pacing()
    assert pauses_of(pacing, 8) == [1, 2, 4, 8, 16, 32, 60, 60]
    pacing.answered(1000.0)
    assert pauses_of(pacing, 3, 1000.0) == [1, 2, 4]


def test_a_batch_may_be_refused_for_as_long_as_its_window_lasts() -> None:
    assert set(pauses_of(Pacing(), 5000)[6:]) == {60}


def test_a_refusal_that_names_its_time_is_believed() -> None:
    pacing = Pacing()
    assert pacing.hold_up(10.0, 17.5) == 17.5
    assert (pacing.pause_s(10.0), pacing.pause_s(20.0), pacing.pause_s(30.0)) == (17.5, 7.5, 0.0)


def test_lines_that_were_refused_together_hold_the_batch_up_once() -> None:
    pacing = Pacing()
    assert [pacing.hold_up(0.0), pacing.hold_up(0.1), pacing.hold_up(0.9, 30.0)] == [1, 0, 0]
    assert pacing.hold_up(1.0) == 2


def test_a_batch_that_gets_nowhere_makes_room_for_another() -> None:
    pacing = Pacing()
    pacing.taken(100.0)
    assert pacing.rest_s(100.0) == 0, "nothing holds it up"
    assert pacing.hold_up(100.0) == 1 and pacing.rest_s(100.0) == 0
    assert pacing.hold_up(101.0) == 2 and pacing.rest_s(101.0) == 0
    assert pacing.hold_up(103.0) == 4 and pacing.rest_s(103.0) == PARK_S, "seven seconds for nothing"
    pacing.taken(110.0)
    assert pacing.hold_up(110.0) == 8 and pacing.rest_s(110.0) == 8


def test_a_batch_that_gets_on_keeps_its_place_through_short_pauses() -> None:
    pacing = Pacing()
    pacing.taken(0.0)
    for second in range(0, 100, 2):
        pacing.answered(float(second))
        assert pacing.hold_up(second + 0.5, 1.0) == 1 and pacing.rest_s(second + 0.5) == 0


@pytest.mark.parametrize("other", [7, 8])
def test_a_line_beside_which_the_engine_died_five_times_is_given_up(other: int) -> None:
    pacing = Pacing()
    assert [pacing.lost(3) for _ in range(4)] == [False] * 4
    assert not pacing.lost(other)
    assert pacing.lost(3)
