"""When a process counts as saturated."""

from __future__ import annotations

from kvarn.admission.process_delay import ProcessDelay


def play(delay: ProcessDelay, waits: list[float], every_s: float, start: float = 100.0) -> list[bool]:
    refused = []
    for index, waited_s in enumerate(waits):
        delay.note(waited_s, start + index * every_s)
        refused.append(delay.is_too_long(waited_s))
    return refused


def test_a_burst_is_no_overload() -> None:
    waits = [0.002 * index for index in range(64)]
    assert not any(play(ProcessDelay(2.0), waits, 0.002))


def test_one_long_pause_of_an_idle_process_refuses_nobody() -> None:
    assert not any(play(ProcessDelay(2.0), [0.0, 0.0, 0.4, 0.0, 0.5], 10.0))


def test_a_standing_wait_is_refused_and_who_did_not_wait_is_not() -> None:
    delay = ProcessDelay(2.0)
    refused = play(delay, [0.3] * 1000, 0.002)
    assert not any(refused[:20]) and all(refused[200:])
    assert not delay.is_too_long(0.01)


def test_it_ends_when_waits_end() -> None:
    delay = ProcessDelay(2.0)
    play(delay, [0.3] * 1000, 0.002)
    play(delay, [0.01] * 1000, 0.002, start=103.0)
    assert not delay.is_too_long(0.3)


def test_a_standing_wait_is_forgotten_while_nobody_comes() -> None:
    delay = ProcessDelay(2.0)
    play(delay, [0.3] * 1000, 0.002)
    delay.note(0.0, 162.0)
    assert not delay.is_too_long(0.3)
    assert not any(play(delay, [0.06] * 20, 60.0, start=222.0))


def test_a_target_that_is_short_is_kept_by_refusing_sooner() -> None:
    assert any(play(ProcessDelay(0.2), [0.03] * 200, 0.002))
    assert not any(play(ProcessDelay(2.0), [0.03] * 200, 0.002))
