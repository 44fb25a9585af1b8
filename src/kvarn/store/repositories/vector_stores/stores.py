"""Vector stores, and what their files add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import is_id, new_id
from kvarn.store.models import VectorStore, VectorStoreFile
from kvarn.store.owner import Owner
from kvarn.store.repositories.chunks import sum_stores
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes, storing
from kvarn.store.repositories.vector_stores.attachments import DAY_S, Attachment, attach, expiry, lock_files, read_sizes
from kvarn.store.repositories.vector_stores.deletion import hide_stores

_NOTE_EVERY_S = 60
"""Seconds within which uses of a store are one: not each search is to write."""


@dataclass(frozen=True, slots=True)
class FileSums:
    """Numbers of files by status, and the bytes that they take."""

    by_status: Counter[str]
    usage_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SummedStore:
    row: VectorStore
    sums: FileSums
    passages: int = 0
    embedder: str = ""
    """Identity of the embedder whose vectors are searched; empty: there are none."""

    @property
    def id(self) -> str:
        return self.row.id


async def create_store(
    store: Store,
    owner: Owner,
    fields: Mapping[str, Any],
    expires_after_days: int | None,
    attachments: Sequence[Attachment] = (),
) -> SummedStore:
    """Make a vector store with these files, all or none. Raises as `attach` does, and `StorageFullError`."""
    now, counted = int(store.now()), ROW_BYTES + json_bytes(dict(fields))
    row = VectorStore(
        id=new_id("vs_"),
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        counted_bytes=counted,
        created_at=now,
        last_active_at=now,
        expires_after_days=expires_after_days,
        expires_at=expiry(now, expires_after_days),
        **fields,
    )
    size = counted + await read_sizes(store, owner, attachments)
    async with storing(store, owner.organization_id, size) as session:
        files = await lock_files(session, owner, attachments, now)
        session.add(row)
        await session.flush()
        await attach(session, owner, row, files, attachments, now)
    return await read_store(store, owner, row.id)


async def read_store(store: Store, owner: Owner, store_id: str) -> SummedStore:
    async with store.reading() as session:
        (summed,) = await _summed(session, [await find_store(session, owner, store_id)])
    return summed


async def list_stores(store: Store, owner: Owner, cursor: Cursor) -> Page[SummedStore]:
    async with store.reading() as session:
        page = await read_page(session, _visible(owner), cursor, (VectorStore.created_at, VectorStore.id))
        return Page(await _summed(session, page.items), page.has_more)


async def _summed(session: AsyncSession, rows: Sequence[VectorStore]) -> list[SummedStore]:
    ids = [row.id for row in rows]
    sums = await sum_files(session, VectorStoreFile.store_id, ids)
    chunks = await sum_stores(session, ids)
    return [SummedStore(row, sums[row.id], *chunks.get(row.id, (0, ""))) for row in rows]


async def update_store(store: Store, owner: Owner, store_id: str, changes: Mapping[str, Any]) -> SummedStore:
    """Change columns; a new `expires_after_days` counts from now on."""
    async with store.transaction() as session:
        row = await find_store(session, owner, store_id, to_change=True)
        for column, value in changes.items():
            setattr(row, column, value)
        row.last_active_at = int(store.now())
        row.expires_at = expiry(row.last_active_at, row.expires_after_days)
    return await read_store(store, owner, store_id)


async def note_use(store: Store, store_ids: Collection[str]) -> None:
    """Note that stores are in use, which puts their expiry off."""
    now = int(store.now())
    old = VectorStore.id.in_(store_ids), VectorStore.last_active_at <= now - _NOTE_EVERY_S
    async with store.reading() as session:
        is_due = await session.scalar(select(VectorStore.id).where(*old).limit(1)) is not None
    if is_due:
        later = {"last_active_at": now, "expires_at": now + VectorStore.expires_after_days * DAY_S}
        async with store.transaction() as session:
            await session.execute(update(VectorStore).where(*old).values(later))


async def hide_store(store: Store, owner: Owner, store_id: str) -> VectorStore:
    """Begin a store's deletion: nobody finds it any more, and a sweep would end it (`deletion.drop_store`)."""
    async with store.transaction() as session:
        row = await find_store(session, owner, store_id, to_change=True)
        await hide_stores(session, VectorStore.id == store_id, int(store.now()))
    return row


async def find_store(session: AsyncSession, owner: Owner, store_id: str, *, to_change: bool = False) -> VectorStore:
    missing = _missing(store_id)
    if not is_id(store_id):
        raise NotFoundError(missing)
    query = _visible(owner).where(VectorStore.id == store_id)
    return await find_one(session, query, missing, to_change=to_change)


async def find_stores(store: Store, owner: Owner, store_ids: Collection[str]) -> list[VectorStore]:
    """Each of these stores. Raises `NotFoundError` where one is not there."""
    named = _visible(owner).where(VectorStore.id.in_(filter(is_id, store_ids)))
    async with store.reading() as session:
        found = {row.id: row for row in await session.scalars(named)}
    for store_id in store_ids:
        if store_id not in found:
            raise NotFoundError(_missing(store_id))
    return list(found.values())


async def sum_files(
    session: AsyncSession, along: InstrumentedAttribute[str] | InstrumentedAttribute[str | None], ids: Sequence[str]
) -> dict[str, FileSums]:
    sums = {each: FileSums(Counter()) for each in ids}
    if not ids:
        return sums
    columns = along, VectorStoreFile.status, func.count(), func.sum(VectorStoreFile.usage_bytes)
    query = select(*columns).where(along.in_(ids))
    rows: list[Any] = list(await session.execute(query.group_by(along, VectorStoreFile.status)))
    for key, status, count, size in rows:
        before = sums[key]
        sums[key] = FileSums(before.by_status + Counter({status: count}), before.usage_bytes + int(size or 0))
    return sums


def _missing(store_id: str) -> str:
    return f"There is no vector store {store_id[:80]!r}."


def _visible(owner: Owner) -> Select[VectorStore]:
    return owned_by(owner, VectorStore).where(~VectorStore.hidden)
