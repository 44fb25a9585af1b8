"""The billing tables: each event is counted once into the hour in which it ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from sqlalchemy import exists, func, select

from kvarn.store.engine import Store
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import BilledEvent, BilledHour, UsageEvent
from kvarn.store.repositories.queries import insert
from kvarn.store.repositories.usage import rollups


async def bill(store: Store, events: Sequence[LedgerEvent]) -> int:
    """Count events into their hours, in one transaction, but those that have been counted before; how many were new."""
    if not events:
        return 0
    async with store.transaction() as session:
        unique = {event.id: event for event in events}
        statement = insert(session, BilledEvent).on_conflict_do_nothing(index_elements=["event_id"])
        now = int(store.now())
        rows = [{"event_id": key, "billed_at": now} for key in sorted(unique)]
        new = set((await session.execute(statement.returning(BilledEvent.event_id), rows)).scalars())
        await rollups.add(session, BilledHour, rollups.by(_hour_of, [unique[key] for key in new]))
    return len(new)


async def unbilled(store: Store, step: int = 5000) -> AsyncGenerator[list[LedgerEvent], None]:
    """Events of the ledger that no hour counts yet, some at a time. All of the ledger is looked through once, in steps
    of so many events, so that no query takes long; what comes meanwhile may be among them or not.
    """
    last: str | None = ""
    while True:
        after = last
        async with store.reading() as session:
            ids = select(UsageEvent.id).where(UsageEvent.id > after).order_by(UsageEvent.id).limit(step).subquery()
            last = await session.scalar(select(func.max(ids.c.id)))
            if last is None:
                return
            counted = exists().where(BilledEvent.event_id == UsageEvent.id)
            query = select(UsageEvent).where(UsageEvent.id > after, UsageEvent.id <= last, ~counted)
            found = [_plain(row) for row in await session.scalars(query)]
        if found:
            yield found


def _plain(row: UsageEvent) -> LedgerEvent:
    return LedgerEvent(**{name: getattr(row, name) for name in LedgerEvent.__struct_fields__})


def _hour_of(event: LedgerEvent) -> rollups.Key:
    return (event.hour_at, event.organization_id, event.project_id, event.key_id or "", event.model, event.currency)
