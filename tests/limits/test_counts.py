"""The rule of the counts, wherever they are kept, on a clock of the test's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.limits.counts import END_GUESS_MS, KEEP_MS, Counts, Timing
from kvarn.limits.types import NEVER, Decision, Kind, Limit, Reservation, Update
from limit_reservations import InProcess, InRedis, Place, make_budget_limit, make_limit, make_reservation

REQUESTS, TOKENS, CONCURRENCY = Kind.REQUESTS, Kind.TOKENS, Kind.CONCURRENCY
START = 1_700_000_000_000


def take(place: Place, now_ms: int, *limits: Limit, tokens: int = 1) -> Decision:
    return place.take(make_reservation(*limits, tokens=tokens), START + now_ms)


def admitted(place: Place, now_ms: int, *limits: Limit, tokens: int = 1) -> Reservation:
    reservation = make_reservation(*limits, tokens=tokens)
    assert place.take(reservation, START + now_ms).admitted
    return reservation


def renew(place: Place, now_ms: int, reservation: Reservation, used: int = 0) -> None:
    place.update(Update(reservation, used, ended=False), START + now_ms)


def settle(place: Place, now_ms: int, reservation: Reservation, used: int = 0, *, whole: bool = False) -> None:
    place.update(Update(reservation, used, whole=whole), START + now_ms)


def test_a_limit_is_reached_and_not_passed_by_one_token(place: Place) -> None:
    tpm = make_limit(TOKENS, 1000)
    admitted(place, 0, tpm, tokens=999)
    assert not take(place, 0, tpm, tokens=2).admitted
    full = take(place, 0, tpm, tokens=1)
    assert full.admitted and full.usages[0].used == 1000


def test_a_reservation_takes_of_every_limit_or_of_none(place: Place) -> None:
    roomy, narrow = make_limit(TOKENS, 1000), make_limit(TOKENS, 10, holder="key_1")
    limits = [make_limit(REQUESTS, 100), roomy, make_limit(CONCURRENCY, 5), make_budget_limit(20, 11), narrow]
    assert not take(place, 0, *limits, tokens=11).admitted
    after = take(place, 0, *limits, tokens=10)
    assert after.admitted and [usage.used for usage in after.usages] == [1, 10, 1, 0, 10]


def test_a_client_that_waits_as_told_is_admitted_and_a_millisecond_less_is_too_little(place: Place) -> None:
    tpm = make_limit(TOKENS, 100)
    for moment, tokens in ((500, 30), (2_500, 40), (9_999, 30)):
        admitted(place, moment, tpm, tokens=tokens)
    refused = take(place, 10_000, tpm, tokens=60)
    wait = refused.usages[0].wait_ms
    assert not refused.admitted and wait == 63_000 - 10_000, "the first two charges must have left the window"
    assert not take(place, 10_000 + wait - 1, tpm, tokens=60).admitted
    admitted(place, 10_000 + wait, tpm, tokens=60)


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [(make_limit(TOKENS, 100), 101), (make_limit(CONCURRENCY, 0), 1), (make_budget_limit(100, 21, spent=80), 1)],
    ids=["tokens", "concurrency", "budget"],
)
def test_waiting_does_not_help_a_reservation_larger_than_the_limit(place: Place, limit: Limit, tokens: int) -> None:
    refused = take(place, 0, limit, tokens=tokens)
    assert not refused.admitted and refused.usages[0].wait_ms == NEVER


def test_unused_tokens_are_given_back_where_they_were_charged(place: Place) -> None:
    tpm = make_limit(TOKENS, 100)
    first = admitted(place, 0, tpm, tokens=100)
    assert not take(place, 20_000, tpm).admitted
    settle(place, 20_000, first, 40)
    admitted(place, 20_000, tpm, tokens=60)
    late = take(place, 20_000, tpm)
    assert late.usages[0].wait_ms == 61_000 - 20_000, "the 40 still count from the second in which they were reserved"


def test_a_reservation_older_than_the_window_gives_nothing_back(place: Place) -> None:
    tpm = make_limit(TOKENS, 100)
    long = admitted(place, 0, tpm, tokens=100)
    for moment in range(20_000, 80_000, 20_000):
        renew(place, moment, long, 10)
    admitted(place, 70_000, tpm, tokens=100)
    settle(place, 70_000, long, 10)
    assert not take(place, 70_000, tpm).admitted


def test_use_beyond_the_reservation_is_charged_when_it_is_noticed(place: Place) -> None:
    tpm = make_limit(TOKENS, 100)
    wordy = admitted(place, 0, tpm, tokens=50)
    renew(place, 10_000, wordy, 120)
    settle(place, 20_000, wordy, 150)
    refused = take(place, 20_000, tpm).usages[0]
    assert refused.used == 150
    assert refused.wait_ms == 71_000 - 20_000, "without the first 50 it is still all that a minute allows"


def test_a_whole_refund_gives_the_request_back_too(place: Place) -> None:
    rpm = make_limit(REQUESTS, 1)
    settle(place, 1000, admitted(place, 0, rpm), whole=True)
    settle(place, 2000, admitted(place, 1000, rpm))
    assert not take(place, 2000, rpm).admitted


def test_settling_twice_or_without_a_reservation_has_no_effect(place: Place) -> None:
    tpm = make_limit(TOKENS, 100)
    held = admitted(place, 0, tpm, tokens=100)
    settle(place, 0, make_reservation(tpm, tokens=100), whole=True)
    assert not take(place, 0, tpm).admitted
    settle(place, 0, held, 60)
    settle(place, 0, held, whole=True)
    assert take(place, 0, tpm).usages[0].used == 61


def test_a_lost_mark_gives_nothing_back_that_others_were_charged(place: Place) -> None:
    tpm = make_limit(TOKENS, 1000)
    lost = make_reservation(tpm, tokens=900)
    renew(place, 0, lost, 5)  # its counts went with a restart of Redis
    admitted(place, 0, tpm, tokens=800)
    settle(place, 0, lost, 5)
    assert not take(place, 0, tpm, tokens=201).admitted
    admitted(place, 0, tpm, tokens=200)


@pytest.mark.parametrize("limit", [make_limit(CONCURRENCY, 2), make_budget_limit(100, 50)], ids=["places", "budget"])
def test_running_requests_hold_what_they_reserved_until_they_end_or_are_no_longer_renewed(
    place: Place, limit: Limit
) -> None:
    kept = admitted(place, 0, limit)
    admitted(place, 0, limit)
    refused = take(place, 0, limit)
    assert not refused.admitted and refused.usages[0].wait_ms == END_GUESS_MS
    renew(place, 20_000, kept)
    assert not take(place, 29_999, limit).admitted
    admitted(place, 30_000, limit)
    assert not take(place, 30_000, limit).admitted
    settle(place, 30_000, kept)
    admitted(place, 30_000, limit)


def test_the_reset_is_when_no_charge_counts_any_more(place: Place) -> None:
    rpm = make_limit(REQUESTS, 10)
    admitted(place, 300, rpm)
    reset = take(place, 5_300, rpm).usages[0].reset_ms
    assert START % 1000 == 0 and reset == 66_000 - 5_300
    assert take(place, 5_300 + reset - 1, rpm).usages[0].used == 2
    assert take(place, 5_300 + reset + 61_000, rpm).usages[0].used == 1


def test_what_a_budget_has_spent_and_what_gateways_have_not_read_back_both_count(place: Place) -> None:
    assert not take(place, 0, make_budget_limit(100, 41, spent=60)).admitted
    renew(place, 0, admitted(place, 0, make_budget_limit(100, 10, spent=60, unread=20)))
    others = take(place, 0, make_budget_limit(100, 11, gateway="gw_2"))
    assert not others.admitted and others.usages[0].wait_ms == END_GUESS_MS and others.usages[0].used == 60
    own = take(place, 0, make_budget_limit(100, 21, spent=60, unread=20))
    assert own.usages[0].wait_ms == NEVER and own.usages[0].used == 80, "its own ended requests are known to be spent"
    renew(place, 0, make_reservation(make_budget_limit(100, 0, spent=80)))  # read back
    admitted(place, 0, make_budget_limit(100, 10, spent=80))


def test_of_two_readings_of_a_period_the_larger_is_the_later(place: Place) -> None:
    admitted(place, 0, make_budget_limit(100, 1, spent=80))
    late = take(place, 0, make_budget_limit(100, 30, spent=70, gateway="gw_2"))
    assert not late.admitted and late.usages[0].used == 80


def test_a_new_period_begins_with_nothing_spent_but_what_is_in_flight(place: Place) -> None:
    admitted(place, 0, make_budget_limit(100, 20, spent=80))
    assert not take(place, 0, make_budget_limit(100, 1, spent=80)).admitted
    assert not take(place, 0, make_budget_limit(100, 81, period="2026-11-22")).admitted
    tomorrow = admitted(place, 0, make_budget_limit(100, 80, period="2026-11-22"))
    settle(place, 0, tomorrow)
    assert not take(place, 0, make_budget_limit(100, 1, spent=0)).admitted, "a fast clock opens no budget of others"


def test_large_sums_are_exact(place: Place) -> None:
    tpm = make_limit(TOKENS, 10**12)
    decisions = [take(place, 0, tpm, tokens=tokens).admitted for tokens in (10**12 - 7, 8, 7, 1)]
    assert decisions == [True, False, True, False]
    limit = 4_000_000_000_000_001  # billionths of a currency's unit
    decisions = [take(place, 0, make_budget_limit(limit, amount)).admitted for amount in (limit - 1, 2, 1)]
    assert decisions == [True, False, True]


def test_counts_that_no_longer_count_take_no_memory() -> None:
    place = InProcess(Timing())
    for number in range(50):
        rates = [make_limit(kind, 10, holder=f"key_{number}") for kind in (REQUESTS, TOKENS, CONCURRENCY)]
        admitted(place, 0, *rates, make_budget_limit(10, 1, name=f"budget-{number}"))
    assert len(place.counts) == 250
    assert take(place, 61_000).admitted
    assert len(place.counts) == 50, "what is spent of a budget"
    assert take(place, KEEP_MS).admitted
    assert len(place.counts) == 0


def test_a_redis_whose_clock_is_set_back_an_hour_holds_nobody_up_for_an_hour(redis_client: object) -> None:
    place = InRedis(Timing(slot_ms=100, window=6), redis_client)  # type: ignore[arg-type]
    limits = make_limit(TOKENS, 100), make_limit(CONCURRENCY, 1)
    admitted(place, 0, *limits, tokens=100)
    earlier = -3_600_000
    refused = take(place, earlier, *limits)
    assert not refused.admitted and [usage.used for usage in refused.usages] == [100, 1]
    assert refused.usages[0].wait_ms <= 700
    assert take(place, earlier + 30_000, limits[1]).admitted, "its lease is none in the future"


@given(
    st.lists(
        st.tuples(st.integers(0, 9_000), st.integers(1, 60), st.integers(0, 60), st.integers(0, 90_000)),
        max_size=60,
    )
)
def test_in_no_minute_is_more_used_than_the_limit(steps: list[tuple[int, int, int, int]]) -> None:
    """Whatever is reserved, given back and when: the uses of what was taken in within 60 s never pass the limit."""
    now, taken, due, tpm = 0, [], [], make_limit(TOKENS, 100)
    counts = Counts(Timing(lease_ms=200_000), lambda: now)
    for pause, reserved, used, lasts in steps:
        end = now + pause
        for ends, each, spent in sorted(entry for entry in due if entry[0] <= end):
            now = ends
            counts.update(Update(each, spent))
        due, now = [entry for entry in due if entry[0] > end], end
        reservation = make_reservation(tpm, tokens=reserved)
        if counts.decide(reservation).admitted:
            taken.append((now, min(used, reserved)))
            due.append((now + lasts, reservation, min(used, reserved)))
    for start, _ in taken:
        assert sum(spent for moment, spent in taken if start <= moment < start + 60_000) <= 100
