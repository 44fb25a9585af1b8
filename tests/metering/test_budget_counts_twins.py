"""Budgets counted in the main process and in Redis: the same decisions and the same numbers on the same histories."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.metering.budget_counts import BudgetCounts
from kvarn.metering.budget_reservations import BUDGETS
from profiles import examples

LEASE_MS = 500
START_MS = 1_700_000_000_000
LIMITS = {"b1": 100, "b2": 60}
HOLDERS = ["work-1", "work-2", "work-3", "gw_1", "gw_2"]

ASKED = st.dictionaries(
    st.sampled_from(sorted(LIMITS)),
    st.tuples(st.sampled_from(["2026-11-21", "2026-11-22"]), st.integers(0, 80), st.integers(0, 50)),
    min_size=1,
)
STEPS = st.lists(
    st.tuples(st.integers(0, 300), st.sampled_from(["take", "take", "put"]), st.sampled_from(HOLDERS), ASKED),
    min_size=1,
    max_size=40,
)


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url) as made:
        yield made


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_both_decide_alike(
    client: redis.Redis, steps: list[tuple[int, str, str, dict[str, tuple[str, int, int]]]]
) -> None:
    on_test_clock = BUDGETS.text.replace('redis.call("TIME")', 'redis.call("LRANGE", "clock", 0, 1)')
    assert on_test_clock != BUDGETS.text
    script = client.register_script(on_test_clock)
    client.flushall()
    now = START_MS
    counts = BudgetCounts(lambda: now / 1000)

    def run_both(operation: str, asked: list[tuple[str, str, list[Any]]]) -> tuple[Any, Any]:
        client.delete("clock")
        client.rpush("clock", now // 1000, now % 1000 * 1000)
        keys: list[str] = []
        for name, period, _ in asked:
            keys += [f"{{o}}:{name}:{period}", f"{{o}}:{name}", f"{{o}}:{name}:leases"]
        numbers = [operation, LEASE_MS, 86_400_000]
        argument = msgspec.msgpack.encode([*numbers, *[given for _, _, given in asked]])
        return msgspec.msgpack.decode(script(keys=keys, args=[argument])), msgspec.msgpack.decode(
            counts.run(keys, argument)
        )

    for pause, operation, holder, asked in steps:
        now += pause
        budgets = [
            (name, period, [LIMITS[name], read, holder, amount]) for name, (period, read, amount) in asked.items()
        ]
        in_redis, here = run_both(operation, budgets)
        assert here == in_redis


def test_a_budget_that_nobody_calls_for_a_day_is_forgotten() -> None:
    now = 0.0
    counts = BudgetCounts(lambda: now)
    for day in range(3):
        now = day * 86_400.0
        argument = msgspec.msgpack.encode(["take", LEASE_MS, 86_400_000, [100, 0, "request", 5]])
        counts.run(["period", f"budget {day}", "leases"], argument)
        assert len(counts) == 1
