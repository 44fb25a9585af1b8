"""What has been erased stays so: usage that was still on its way is deleted by the next sweep."""

from __future__ import annotations

from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.models import BilledEvent, BilledHour, OutboxEntry, UsageEvent, UsageHour, UsagePeriod
from kvarn.store.repositories.organization_deletion import delete_erased_usage
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


async def test_late_usage_of_an_erased_organization_is_swept_and_that_of_others_stays(store: Store) -> None:
    await usage_events.note_erased(store, "org-a")
    await usage_events.note_erased(store, "org-a")  # an erasure that was interrupted is done again
    late = [make_event(1), make_event(2, organization_id="org-b"), make_event(3)]
    await usage_events.record(store, late, [b"1", b"2", b"3"])
    await billing.bill(store, late)
    assert await delete_erased_usage(store) > 0
    left = await rows(store)
    assert left.pop("usage_periods") == 3 and set(left.values()) == {1}
    async with store.reading() as session:
        assert (await session.scalars(select(UsageEvent.organization_id))).all() == ["org-b"]
        assert (await session.scalars(select(OutboxEntry.payload))).all() == [b"2"]
    assert await delete_erased_usage(store) == 0
