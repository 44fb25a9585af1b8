"""What has been erased stays so, whatever was on its way."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.models import BilledEvent, BilledHour, OutboxEntry, UsageEvent, UsageHour, UsagePeriod
from kvarn.store.repositories.usage import billing
from kvarn.store.repositories.usage import events as usage_events
from sample_usage import make_event

TABLES = (UsageEvent, OutboxEntry, UsageHour, UsagePeriod, BilledEvent, BilledHour)


async def rows(store: Store) -> dict[str, int]:
    async with store.reading() as session:
        return {
            table.__tablename__: int(await session.scalar(select(func.count()).select_from(table)) or 0)
            for table in TABLES
        }


async def test_a_late_event_of_an_erased_organization_leaves_no_row(store: Store) -> None:
    await usage_events.note_erased(store, "org-a")
    await usage_events.note_erased(store, "org-a")  # an erasure that was interrupted is done again
    late = [make_event(1), make_event(2)]
    assert await usage_events.record(store, late, [b"1", b"2"]) == set()
    assert await billing.bill(store, late) == 0
    assert set((await rows(store)).values()) == {0}


async def test_events_of_others_in_the_same_batch_are_written(store: Store) -> None:
    await usage_events.note_erased(store, "org-a")
    batch = [make_event(1), make_event(2, organization_id="org-b"), make_event(3)]
    assert await usage_events.record(store, batch, [b"1", b"2", b"3"]) == {"use_2"}
    assert await billing.bill(store, batch) == 1
    async with store.reading() as session:
        assert (await session.scalars(select(UsageEvent.organization_id))).all() == ["org-b"]
        assert (await session.scalars(select(OutboxEntry.payload))).all() == [b"2"]


async def test_an_erasure_waits_for_events_that_are_being_written(store: Store) -> None:
    """Else they would be there behind the deletion."""
    async with store.transaction() as session:
        assert len(await usage_events.without_erased(session, [make_event(1)])) == 1
        erasure = asyncio.create_task(usage_events.note_erased(store, "org-a"))
        await asyncio.sleep(0.2)
        assert not erasure.done()
    await erasure
