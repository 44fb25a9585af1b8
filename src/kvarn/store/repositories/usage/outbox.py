"""Events that are to be published: read in order, deleted once the broker has them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, select

from kvarn.store.engine import Store
from kvarn.store.models import OutboxEntry


async def oldest(store: Store, limit: int) -> list[tuple[int, str, bytes]]:
    """Number, event's id and payload of the entries that have waited longest."""
    query = select(OutboxEntry.id, OutboxEntry.event_id, OutboxEntry.payload).order_by(OutboxEntry.id).limit(limit)
    async with store.reading() as session:
        return [(number, event_id, payload) for number, event_id, payload in (await session.execute(query)).all()]


async def forget(store: Store, numbers: Collection[int]) -> None:
    async with store.transaction() as session:
        await session.execute(delete(OutboxEntry).where(OutboxEntry.id.in_(numbers)))


async def waiting(store: Store) -> tuple[int, int | None]:
    """Number of entries, and the time at which the oldest was written (seconds since 1970)."""
    async with store.reading() as session:
        query = select(func.count(), func.min(OutboxEntry.created_at)).select_from(OutboxEntry)
        count, since = (await session.execute(query)).one()
    return int(count), since
