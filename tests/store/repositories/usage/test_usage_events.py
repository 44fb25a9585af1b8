"""The ledger's tables: an event counts once, whoever writes it how often."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.ledger import UsageFilter, UsageSum
from kvarn.store.models import OutboxEntry, UsageEvent, UsagePeriod
from kvarn.store.repositories import leases
from kvarn.store.repositories.usage import events as usage_events
from kvarn.store.repositories.usage import sums as usage_sums
from sample_usage import make_event

DAY = 1_790_000_000 // 86_400 * 86_400


async def count(store: Store, table: type) -> int:
    async with store.reading() as session:
        return int((await session.execute(select(func.count()).select_from(table))).scalar_one())


async def test_an_event_written_again_changes_nothing(store: Store) -> None:
    first = await usage_events.record(store, [make_event(1), make_event(2)], [b"1", b"2"])
    again = await usage_events.record(store, [make_event(2, output_tokens=99), make_event(3)], [b"2", b"3"])
    assert (first, again) == ({"use_1", "use_2"}, {"use_3"})
    assert await count(store, UsageEvent) == await count(store, OutboxEntry) == 3
    (total,) = await usage_sums.sums(store, UsageFilter(), start=0, end=DAY * 2)
    assert total == UsageSum(0, {}, 3, 30, 12, 15, 3_000, "usd")
    async with store.reading() as session:
        periods = (await session.execute(select(UsagePeriod).order_by(UsagePeriod.period))).scalars().all()
    assert [(each.period, each.tokens, each.cost) for each in periods] == [
        ("2026-09", 45, 3_000),
        ("2026-09-21", 45, 3_000),
        ("total", 45, 3_000),
    ]


async def test_of_an_event_twice_in_one_batch_the_first_counts(store: Store) -> None:
    written = await usage_events.record(
        store, [make_event(1), make_event(1, output_tokens=99, outcome="lost")], [b"first", b"second"]
    )
    assert written == {"use_1"}
    (total,) = await usage_sums.sums(store, UsageFilter(), start=0, end=DAY * 2, group_by=["outcome"])
    assert total.group == {"outcome": "finished"} and total.output_tokens == 5
    async with store.reading() as session:
        assert (await session.execute(select(OutboxEntry.payload))).scalars().all() == [b"first"]


async def test_writers_at_once_add_up(store: Store) -> None:
    async def write(writer: int) -> None:
        for number in range(10):
            # Every event is written by two writers.
            await usage_events.record(
                store, [make_event(writer // 2 * 100 + number), make_event(writer * 1000 + 500 + number)]
            )

    await asyncio.gather(*[write(writer) for writer in range(4)])
    (total,) = await usage_sums.sums(store, UsageFilter(), start=0, end=DAY * 2)
    assert total.requests == 20 + 40
    async with store.reading() as session:
        periods = (await session.execute(select(UsagePeriod))).scalars().all()
    assert [each.tokens for each in periods] == [60 * 15] * 3


async def test_a_lease_is_held_by_one_until_its_time_is_over(store: Store) -> None:
    now = 1000.0
    store.now = lambda: now
    assert await leases.take(store, "work", "a", 10)
    assert not await leases.take(store, "work", "b", 10)
    now = 1009.0
    assert await leases.take(store, "work", "a", 10)
    now = 1018.0
    assert not await leases.take(store, "work", "b", 10)
    now = 1019.0
    assert await leases.take(store, "work", "b", 10)
    assert not await leases.take(store, "work", "a", 10)
    await leases.give_back(store, "work", "a")
    assert not await leases.take(store, "work", "a", 10)
    await leases.give_back(store, "work", "b")
    assert await leases.take(store, "work", "a", 10)
