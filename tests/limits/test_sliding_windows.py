"""The algorithm by itself, on a clock of the test's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvarn.limits.local import END_GUESS_MS, SlidingWindows, Timing
from kvarn.limits.types import NEVER, Kind
from limit_reservations import make_limit, make_reservation

REQUESTS, TOKENS, CONCURRENCY = Kind.REQUESTS, Kind.TOKENS, Kind.CONCURRENCY
MINUTE = 60_000
TIMING = Timing()


def test_a_limit_is_reached_and_not_passed_by_one_token() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 1000)
    assert counts.take(make_reservation(tpm, tokens=999), 0).admitted
    assert not counts.take(make_reservation(tpm, tokens=2), 0).admitted
    full = counts.take(make_reservation(tpm, tokens=1), 0)
    assert full.admitted and full.usages[0].used == 1000


def test_every_rule_is_taken_or_none() -> None:
    counts = SlidingWindows(TIMING)
    roomy, narrow = make_limit(TOKENS, 1000), make_limit(TOKENS, 10, holder="key_1")
    requests, places = make_limit(REQUESTS, 100), make_limit(CONCURRENCY, 5)
    assert not counts.take(make_reservation(requests, roomy, places, narrow, tokens=11), 0).admitted
    after = counts.take(make_reservation(requests, roomy, places, narrow, tokens=10), 0)
    assert [reading.used for reading in after.usages] == [1, 10, 1, 10]


def test_whoever_waits_as_told_is_let_in_and_a_millisecond_less_is_too_little() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 100)
    for moment, tokens in ((500, 30), (2_500, 40), (9_999, 30)):
        assert counts.take(make_reservation(tpm, tokens=tokens), moment).admitted
    refused = counts.take(make_reservation(tpm, tokens=60), 10_000)
    wait = refused.usages[0].wait_ms
    assert not refused.admitted and wait == 63_000 - 10_000, "the first two charges must have left the window"
    assert not counts.take(make_reservation(tpm, tokens=60), 10_000 + wait - 1).admitted
    assert counts.take(make_reservation(tpm, tokens=60), 10_000 + wait).admitted


def test_more_than_the_limit_is_never_let_in() -> None:
    decision = SlidingWindows(TIMING).take(make_reservation(make_limit(TOKENS, 100), tokens=101), 0)
    assert not decision.admitted and decision.usages[0].wait_ms == NEVER
    shut = SlidingWindows(TIMING).take(make_reservation(make_limit(CONCURRENCY, 0)), 0)
    assert shut.usages[0].wait_ms == NEVER


def test_what_was_not_used_is_given_back_where_it_was_charged() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 100)
    first = make_reservation(tpm, tokens=100)
    counts.take(first, 0)
    assert not counts.take(make_reservation(tpm, tokens=1), 20_000).admitted
    counts.settle(first, 40, 20_000)
    assert counts.take(make_reservation(tpm, tokens=60), 20_000).admitted
    late = counts.take(make_reservation(tpm, tokens=1), 20_000)
    assert late.usages[0].wait_ms == 61_000 - 20_000, "the 40 still count from the second in which they were reserved"


def test_a_reservation_older_than_the_window_gives_nothing_back() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 100)
    long = make_reservation(tpm, tokens=100)
    counts.take(long, 0)
    for moment in range(20_000, 80_000, 20_000):
        counts.renew(long, 10, moment)
    assert counts.take(make_reservation(tpm, tokens=100), 70_000).admitted
    counts.settle(long, 10, 70_000)
    assert not counts.take(make_reservation(tpm, tokens=1), 70_000).admitted


def test_what_is_used_beyond_the_reservation_is_a_debt_from_when_it_is_noticed() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 100)
    wordy = make_reservation(tpm, tokens=50)
    counts.take(wordy, 0)
    counts.renew(wordy, 120, 10_000)
    counts.settle(wordy, 150, 20_000)
    refused = counts.take(make_reservation(tpm, tokens=1), 20_000).usages[0]
    assert refused.used == 150
    assert refused.wait_ms == 71_000 - 20_000, "without the first 50 it is still all that a minute allows"


def test_a_refund_of_everything_gives_the_request_back_too() -> None:
    counts, rpm = SlidingWindows(TIMING), make_limit(REQUESTS, 1)
    lost = make_reservation(rpm)
    counts.take(lost, 0)
    counts.settle(lost, 0, 1000, whole=True)
    again = make_reservation(rpm)
    assert counts.take(again, 1000).admitted
    counts.settle(again, 0, 2000)
    assert not counts.take(make_reservation(rpm), 2000).admitted


def test_settling_twice_or_what_was_never_taken_has_no_effect() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 100)
    held, stranger = make_reservation(tpm, tokens=100), make_reservation(tpm, tokens=100)
    counts.take(held, 0)
    counts.settle(stranger, 0, 0, whole=True)
    assert not counts.take(make_reservation(tpm), 0).admitted
    counts.settle(held, 60, 0)
    counts.settle(held, 0, 0, whole=True)
    assert counts.take(make_reservation(tpm), 0).usages[0].used == 61


def test_running_requests_hold_places_until_they_end_or_are_no_longer_renewed() -> None:
    counts, places = SlidingWindows(TIMING), make_limit(CONCURRENCY, 2)
    kept, lost = make_reservation(places), make_reservation(places)
    counts.take(kept, 0)
    counts.take(lost, 0)
    refused = counts.take(make_reservation(places), 0)
    assert not refused.admitted and refused.usages[0].wait_ms == END_GUESS_MS
    counts.renew(kept, 0, 20_000)
    third = make_reservation(places)
    assert not counts.take(third, 29_999).admitted
    assert counts.take(third, 30_000).admitted, "the place of a request that nobody renews runs out"
    assert not counts.take(make_reservation(places), 30_000).admitted
    counts.settle(kept, 0, 30_000)
    assert counts.take(make_reservation(places), 30_000).admitted


def test_the_reset_is_when_nothing_counts_any_more() -> None:
    counts, rpm = SlidingWindows(TIMING), make_limit(REQUESTS, 10)
    counts.take(make_reservation(rpm), 300)
    reset = counts.take(make_reservation(rpm), 5_300).usages[0].reset_ms
    assert reset == 66_000 - 5_300
    assert counts.take(make_reservation(rpm), 5_300 + reset - 1).usages[0].used == 2
    assert counts.take(make_reservation(rpm), 5_300 + reset + MINUTE + 1000).usages[0].used == 1


def test_what_no_longer_counts_takes_no_memory() -> None:
    counts = SlidingWindows(TIMING)
    for number in range(50):
        bounds = [make_limit(kind, 10, holder=f"key_{number}") for kind in Kind]
        counts.take(make_reservation(*bounds), 0)
    assert len(counts) == 200
    counts.sweep(61_000)
    assert len(counts) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 9_000), st.integers(1, 60), st.integers(0, 60), st.integers(0, 90_000)),
        max_size=60,
    )
)
def test_in_no_minute_is_more_used_than_the_limit(steps: list[tuple[int, int, int, int]]) -> None:
    """Whatever is reserved, given back and when: the uses of what was taken in within 60 s never pass the limit."""
    counts, tpm = SlidingWindows(Timing(lease_ms=200_000)), make_limit(TOKENS, 100)
    now, taken, due = 0, [], []
    for pause, reserved, used, lasts in steps:
        now += pause
        for end, each, spent in [entry for entry in due if entry[0] <= now]:
            counts.settle(each, spent, end)
            due.remove((end, each, spent))
        reservation = make_reservation(tpm, tokens=reserved)
        if counts.take(reservation, now).admitted:
            taken.append((now, min(used, reserved)))
            due.append((now + lasts, reservation, min(used, reserved)))
    for start, _ in taken:
        assert sum(spent for moment, spent in taken if start <= moment < start + MINUTE) <= 100


def test_a_mark_that_was_lost_gives_nothing_back_that_others_were_charged() -> None:
    counts, tpm = SlidingWindows(TIMING), make_limit(TOKENS, 1000)
    lost = make_reservation(tpm, tokens=900)
    counts.renew(lost, 5, 0)  # its counts went with a restart of Redis
    assert counts.take(make_reservation(tpm, tokens=800), 0).admitted
    counts.settle(lost, 5, 0)
    assert not counts.take(make_reservation(tpm, tokens=201), 0).admitted
    assert counts.take(make_reservation(tpm, tokens=200), 0).admitted
