"""The billing tables: each event is counted once into the hour in which it ended."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import BilledEvent, BilledHour, UsageEvent
from kvarn.store.repositories import rollups
from kvarn.store.repositories.dialect import insert
from kvarn.store.repositories.erasures import without_erased


async def bill(store: Store, events: Sequence[LedgerEvent]) -> int:
    """Count events into their hours, in one transaction. Those that have been counted before are left out, and those
    of organisations whose usage has been erased.

    Returns:
        How many were new.

    Raises:
        StoreAwayError: The database does not answer; nothing is counted, or nobody knows.
    """
    if not events:
        return 0
    async with store.transaction() as session:
        unique = {event.id: event for event in await without_erased(session, events)}
        if not unique:
            return 0
        statement = insert(session, BilledEvent).on_conflict_do_nothing(index_elements=["event_id"])
        now = int(store.now())
        rows = [{"event_id": key, "billed_at": now} for key in sorted(unique)]
        new = set((await session.execute(statement.returning(BilledEvent.event_id), rows)).scalars())
        await rollups.add(session, BilledHour, rollups.by(_hour_of, [unique[key] for key in new]))
    return len(new)


async def unbilled(store: Store, limit: int) -> list[LedgerEvent]:
    """Events of the ledger that no hour counts yet, in no particular order."""
    query = (
        select(UsageEvent)
        .outerjoin(BilledEvent, BilledEvent.event_id == UsageEvent.id)
        .where(BilledEvent.event_id.is_(None))
        .limit(limit)
    )
    async with store.reading() as session:
        found = await session.scalars(query)
        return [LedgerEvent(**{name: getattr(row, name) for name in LedgerEvent.__struct_fields__}) for row in found]


def _hour_of(event: LedgerEvent) -> rollups.Key:
    return (event.hour_at, event.organization_id, event.project_id, event.key_id or "", event.model, event.currency)
