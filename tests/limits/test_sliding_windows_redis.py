"""The algorithm in Python and its twin in Redis: the same decisions and the same numbers on the same histories."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.limits.backend import read_decision, script_input
from kvarn.limits.local import SlidingWindows, Timing
from kvarn.limits.scripts import COUNTS
from kvarn.limits.types import Decision, Kind, Reservation
from limit_reservations import make_limit, make_reservation
from profiles import examples

TIMING = Timing(slot_ms=100, window=6, lease_ms=500)
LIMITS = [
    make_limit(kind, limit, holder)
    for holder, limits in {"org-1": (8, 100, 4), "key_1": (5, 60, 2)}.items()
    for kind, limit in zip(Kind, limits, strict=True)
]
START_MS = 1_700_000_000_000


class Twin:
    """The script, on a clock that the test sets."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        on_test_clock = COUNTS.text.replace('redis.call("TIME")', 'redis.call("LRANGE", "clock", 0, 1)')
        assert on_test_clock != COUNTS.text
        self._script = client.register_script(on_test_clock)
        client.flushall()

    def run(
        self, operation: str, reservation: Reservation, now_ms: int, used: int = 0, *, whole: bool = False
    ) -> bytes:
        self._client.delete("clock")
        self._client.rpush("clock", now_ms // 1000, now_ms % 1000 * 1000)
        keys, argument = script_input(operation, reservation, TIMING, used, whole=whole)
        reply: bytes = self._script(keys=keys, args=[argument])
        return reply

    def take(self, reservation: Reservation, now_ms: int) -> Decision:
        return read_decision(reservation, self.run("take", reservation, now_ms))


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url) as made:
        yield made


STEPS = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.sampled_from(["take", "take", "take", "renew", "settle", "settle whole"]),
        st.integers(1, 70),
        st.lists(st.sampled_from(LIMITS), unique=True, min_size=1),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_both_decide_alike_and_tell_the_same_numbers(client: redis.Redis, steps: list[tuple[Any, ...]]) -> None:
    counts, twin = SlidingWindows(TIMING), Twin(client)
    now, orders = START_MS, [make_reservation(*LIMITS, tokens=10)]
    for pause, operation, tokens, bounds, used in steps:
        now += pause
        known = orders[used % len(orders)]
        if operation == "take":
            reservation = make_reservation(*bounds, tokens=tokens)
            orders.append(reservation)
            assert twin.take(reservation, now) == counts.take(reservation, now)
        elif operation == "renew":
            twin.run("renew", known, now, used)
            counts.renew(known, used, now)
        else:
            whole = operation == "settle whole"
            twin.run("settle", known, now, used, whole=whole)
            counts.settle(known, used, now, whole=whole)
    last = make_reservation(*LIMITS, tokens=1)
    assert twin.take(last, now) == counts.take(last, now)


def test_large_numbers_stay_exact(client: redis.Redis) -> None:
    counts, twin = SlidingWindows(TIMING), Twin(client)
    tpm = make_limit(Kind.TOKENS, 10**12)
    for tokens in (10**12 - 7, 8, 7, 1):
        reservation = make_reservation(tpm, tokens=tokens)
        assert twin.take(reservation, START_MS) == counts.take(reservation, START_MS)


def test_a_server_whose_clock_is_set_back_an_hour_holds_nobody_up_for_an_hour(client: redis.Redis) -> None:
    twin, rules = Twin(client), (make_limit(Kind.TOKENS, 100), make_limit(Kind.CONCURRENCY, 1))
    assert twin.take(make_reservation(*rules, tokens=100), START_MS).admitted
    earlier = START_MS - 3_600_000
    refused = twin.take(make_reservation(*rules, tokens=1), earlier)
    assert not refused.admitted and refused.usages[0].used == 100
    assert refused.usages[0].wait_ms <= 700 and refused.usages[1].wait_ms == 0
    again = make_reservation(make_limit(Kind.TOKENS, 100), tokens=1)
    assert twin.take(again, earlier + 1).usages[0].wait_ms <= 700
