"""Files leave vector stores: with their passages, in one transaction, and with what is cached of prompts that quoted
them.

A cached prompt is found under a salt that has its project's `cache_generation` in it: with the next one no prompt finds
what was cached before, in no engine and no tier, and it goes when it is the least recently used.

Rows are locked in one order, here and by all that changes stores: uploaded files, stores, their files, chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.models import Project, VectorStore, VectorStoreFile
from kvarn.store.owner import Owner
from kvarn.store.repositories import chunks
from kvarn.store.repositories.changes import KEYS, add_change, lock_changes
from kvarn.store.repositories.row_deletion import Condition
from kvarn.store.repositories.stored_bytes import ROW_BYTES

Place = tuple[str, str]
"""Ids of a store and of a file in it."""
_AT_ONCE = 25
"""Files that leave in one transaction."""


async def remove_files(session: AsyncSession, condition: Condition, now: int) -> list[Place]:
    """Take files out of their vector stores, which nothing finds them in any more; for `delete_chunks`, where they
    were. A job that ingests one finds nothing to add to."""
    having = select(VectorStoreFile.store_id).where(condition)
    ordered = select(VectorStore.id).where(VectorStore.id.in_(having)).order_by(VectorStore.id)
    if not (await session.scalars(ordered.with_for_update())).all():
        return []
    columns = VectorStoreFile.store_id, VectorStoreFile.file_id, VectorStoreFile.usage_bytes, VectorStoreFile.quoted_at
    found = (await session.execute(select(*columns, *_OWNER).join(VectorStore, _OF_STORE).where(condition))).all()
    freed, quoted = Counter[str](), set[Owner]()
    for row in found:
        owner = Owner(row.organization_id, row.project_id)
        await chunks.remove_file(session, owner, row.store_id, row.file_id)
        freed[row.store_id] += row.usage_bytes + ROW_BYTES
        quoted |= {owner} if row.quoted_at is not None else set()
    await session.execute(delete(VectorStoreFile).where(condition))
    for store_id, size in sorted(freed.items()):
        smaller = {"counted_bytes": VectorStore.counted_bytes - size}
        await session.execute(update(VectorStore).where(VectorStore.id == store_id).values(smaller))
    if quoted:
        await _give_up_cached(session, quoted, now)
    return [(row.store_id, row.file_id) for row in found]


async def delete_chunks(store: Store, removed: Sequence[Place]) -> None:
    """Delete the passages of files that were removed, in steps, which a sweep would end."""
    for store_id, file_id in removed:
        await chunks.delete_chunks(store, store_id, file_id)


async def drop_store(store: Store, row: VectorStore) -> None:
    """Delete a hidden store, in steps of bounded size. Interrupted, it may be called again."""
    await chunks.remove_store(store, Owner(row.organization_id, row.project_id), row.id)
    files = select(VectorStoreFile.file_id).where(VectorStoreFile.store_id == row.id).limit(_AT_ONCE)
    left = True
    while left:
        async with store.transaction() as session:
            found = list(await session.scalars(files))
            those = (VectorStoreFile.store_id == row.id) & VectorStoreFile.file_id.in_(found)
            await session.execute(delete(VectorStoreFile).where(those))
            left = bool(found)
    async with store.transaction() as session:
        await session.execute(delete(VectorStore).where(VectorStore.id == row.id))


async def hide_stores(session: AsyncSession, condition: Condition, now: int) -> list[VectorStore]:
    """Begin the deletion of stores: nobody finds them any more, nor what is cached of prompts that quoted them, and a
    sweep would end it."""
    stores = list(await session.scalars(select(VectorStore).where(condition)))
    quoting = select(VectorStoreFile.store_id).where(
        VectorStoreFile.store_id.in_([row.id for row in stores if not row.hidden]),
        VectorStoreFile.quoted_at.is_not(None),
    )
    quoted = set(await session.scalars(quoting.distinct()))
    for row in stores:
        row.hidden, row.expires_at = True, 0
    await session.flush()
    if quoted:
        await _give_up_cached(session, {Owner(r.organization_id, r.project_id) for r in stores if r.id in quoted}, now)
    return stores


async def _give_up_cached(session: AsyncSession, owners: set[Owner], now: int) -> None:
    """Find nothing any more that is cached of these projects' prompts; other processes hear of it."""
    await lock_changes(session)
    ids = sorted(owner.project_id for owner in owners)
    following = {"cache_generation": func.coalesce(Project.cache_generation, 0) + 1}
    await session.execute(update(Project).where(Project.id.in_(ids)).values(following))
    for organization_id in sorted({owner.organization_id for owner in owners}):
        add_change(session, organization_id, KEYS, now)


_OF_STORE = VectorStore.id == VectorStoreFile.store_id
_OWNER = VectorStore.organization_id, VectorStore.project_id
