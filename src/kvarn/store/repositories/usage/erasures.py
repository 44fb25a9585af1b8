"""Organisations whose usage has been erased: none of it may come back with an event that was still on its way."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import ErasedOrganization
from kvarn.store.repositories.dialect import insert, is_postgresql

_log = logging.getLogger("kvarn.store")


async def note_erased(store: Store, organization_id: str) -> None:
    """From here on no event of this organisation is written: what stands in the tables now may be deleted for good."""
    async with store.transaction() as session:
        if is_postgresql(session):
            # Waits for all who looked and have not yet written; whoever is to look waits for us. Who only reads, as a
            # backup does, waits for nobody. SQLite has one writer at a time anyway.
            await session.execute(text(f"LOCK TABLE {ErasedOrganization.__tablename__} IN EXCLUSIVE MODE"))
        statement = insert(session, ErasedOrganization).on_conflict_do_nothing(index_elements=["id"])
        await session.execute(statement, [{"id": organization_id, "erased_at": int(store.now())}])


async def without_erased(session: AsyncSession, events: Sequence[LedgerEvent]) -> list[LedgerEvent]:
    """Those that may be written in this transaction; the log says how many others there were."""
    if is_postgresql(session):
        await session.execute(text(f"LOCK TABLE {ErasedOrganization.__tablename__} IN ROW SHARE MODE"))
    organizations = {event.organization_id for event in events}
    query = select(ErasedOrganization.id).where(ErasedOrganization.id.in_(organizations))
    erased = set(await session.scalars(query))
    if not erased:
        return list(events)
    kept = [event for event in events if event.organization_id not in erased]
    _log.warning("usage events of erased organizations dropped", extra={"events": len(events) - len(kept)})
    return kept
