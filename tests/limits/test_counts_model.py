"""Each place that counts against a plain model, on the same random histories."""

from __future__ import annotations

from typing import Any

import msgspec
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.limits.counts import Timing
from kvarn.limits.types import Kind, Limit, Reservation, Spending, Update
from limit_reservations import InMainProcess, InProcess, InRedis, make_budget_limit, make_limit, make_reservation
from profiles import examples

# Long, since Redis lets keys expire by its own clock.
TIMING = Timing(slot_ms=100_000, window=6, lease_ms=500_000)
START_MS = 1_700_000_000_000
RATES = [
    make_limit(kind, maximum, holder)
    for holder, maxima in {"org-1": (8, 100, 4), "key_1": (5, 60, 2)}.items()
    for kind, maximum in zip((Kind.REQUESTS, Kind.TOKENS, Kind.CONCURRENCY), maxima, strict=True)
]
SPENDINGS = st.builds(
    Spending,
    st.sampled_from(["2026-11-21", "2026-11-22"]),
    st.integers(0, 80),
    st.sampled_from(["gw_1", "gw_2"]),
    st.integers(0, 20),
)
BUDGETS = st.builds(make_budget_limit, st.just(100), st.integers(0, 50), name=st.sampled_from(["b1", "b2"]))
LIMITS = st.lists(st.sampled_from(RATES) | BUDGETS, unique_by=lambda limit: limit.key, min_size=1)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 400_000),
        st.sampled_from(["take", "take", "take", "renew", "settle", "settle whole"]),
        st.integers(1, 70),
        LIMITS,
        st.integers(0, 200),
        SPENDINGS,
    ),
    min_size=1,
    max_size=40,
)


class PlainModel:
    """Every charge, hold and reading that ever was; what counts is summed anew each time."""

    def __init__(self) -> None:
        self.charges: dict[tuple[str, int], int] = {}
        self.holds: dict[tuple[str, str], tuple[int, int]] = {}
        self.readings: list[tuple[str, str, int]] = []
        self.marks: dict[str, tuple[int, int, int]] = {}

    def take(self, reservation: Reservation, now_ms: int) -> tuple[bool, list[int]]:
        for limit in reservation.limits:
            self.learn(limit)
        used = [self.used(limit, now_ms) for limit in reservation.limits]
        amounts = [reservation.amount(limit) for limit in reservation.limits]
        fits = [self.fits(*each, now_ms) for each in zip(reservation.limits, amounts, used, strict=True)]
        if not all(fits):
            return False, used
        slot, expires_ms = now_ms // TIMING.slot_ms, now_ms + TIMING.lease_ms
        if any(limit.kind.is_window for limit in reservation.limits):
            self.marks[reservation.work_id] = slot, reservation.tokens, expires_ms
        for limit, amount in zip(reservation.limits, amounts, strict=True):
            if limit.kind.is_window:
                self.charge(limit, slot, amount)
            else:
                self.holds[limit.key, reservation.work_id] = amount, expires_ms
        return True, [self.used(limit, now_ms) for limit in reservation.limits]

    def update(self, update: Update, now_ms: int) -> None:
        reservation, slot, expires_ms = update.reservation, now_ms // TIMING.slot_ms, now_ms + TIMING.lease_ms
        for limit in reservation.limits:
            self.learn(limit)
            if (spending := limit.spending) is not None:
                self.holds[limit.key, spending.gateway] = spending.unread, expires_ms
            if not limit.kind.is_window:
                self.holds[limit.key, reservation.work_id] = 0 if update.ended else limit.amount, expires_ms
        of_slot, charged, mark_expires_ms = self.marks.pop(reservation.work_id, (slot, update.used, 0))
        known = mark_expires_ms > now_ms
        if not known:
            of_slot, charged = slot, update.used
        more = update.used - charged
        for limit in reservation.limits:
            if limit.kind is Kind.TOKENS and known and (update.ended or more > 0):
                self.charge(limit, slot if more > 0 else of_slot, more)
            if limit.kind is Kind.REQUESTS and known and update.ended and update.whole:
                self.charge(limit, of_slot, -1)
        if not update.ended and any(limit.kind.is_window for limit in reservation.limits):
            self.marks[reservation.work_id] = of_slot, max(charged, update.used), expires_ms

    def learn(self, limit: Limit) -> None:
        if (spending := limit.spending) is not None:
            self.readings.append((limit.key, spending.period, spending.spent))

    def charge(self, limit: Limit, slot: int, amount: int) -> None:
        self.charges[limit.key, slot] = max(0, self.charges.get((limit.key, slot), 0) + amount)

    def spent(self, limit: Limit) -> int:
        spending = limit.spending
        if spending is None:
            return 0
        return max(spent for key, period, spent in self.readings if (key, period) == (limit.key, spending.period))

    def held(self, limit: Limit, now_ms: int) -> int:
        return sum(amount for (key, _), (amount, expiry) in self.holds.items() if key == limit.key and expiry > now_ms)

    def used(self, limit: Limit, now_ms: int) -> int:
        if limit.kind.is_window:
            oldest = now_ms // TIMING.slot_ms - TIMING.window
            return sum(count for (key, slot), count in self.charges.items() if key == limit.key and slot >= oldest)
        if limit.spending is not None:
            return max(self.spent(limit), limit.spending.spent + limit.spending.unread)
        return self.held(limit, now_ms)

    def fits(self, limit: Limit, amount: int, used: int, now_ms: int) -> bool:
        if limit.spending is None:
            return used + amount <= limit.maximum
        in_all = self.spent(limit) + self.held(limit, now_ms) + amount
        return used < limit.maximum and max(in_all, used + amount) <= limit.maximum


def _with(reservation: Reservation, spending: Spending) -> Reservation:
    limits = [
        msgspec.structs.replace(limit, spending=spending) if limit.spending else limit for limit in reservation.limits
    ]
    return msgspec.structs.replace(reservation, limits=tuple(limits))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_every_place_decides_as_a_plain_model_does(redis_client: redis.Redis, steps: list[tuple[Any, ...]]) -> None:
    model, here = PlainModel(), InProcess(TIMING)
    others = InMainProcess(TIMING), InRedis(TIMING, redis_client)
    now_ms, reservations = START_MS, [make_reservation(*RATES, tokens=10)]
    for pause, operation, tokens, limits, used, spending in steps:
        now_ms += pause
        if operation == "take":
            reservation = _with(make_reservation(*limits, tokens=tokens), spending)
            reservations.append(reservation)
            decision = here.take(reservation, now_ms)
            assert (decision.admitted, [usage.used for usage in decision.usages]) == model.take(reservation, now_ms)
            assert [place.take(reservation, now_ms) for place in others] == [decision, decision]
        else:
            known = _with(reservations[used % len(reservations)], spending)
            update = Update(known, used, ended=operation != "renew", whole=operation == "settle whole")
            for place in (model, here, *others):
                place.update(update, now_ms)
