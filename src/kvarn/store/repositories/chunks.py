"""Chunks of the files in vector stores, with their words and vectors.

A change of a store counts its `revision` up in the change's own transaction: who keeps an index of the store asks for
that number, and reads what is new where it differs. A row of `chunk_files` decides what is there: chunks without one,
or of another generation than it says, are not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, case, delete, exists, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.clock import SYSTEM_CLOCK
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import ChunkFile, ChunkStore, ChunkVector, StoredChunk
from kvarn.store.owner import Owner
from kvarn.store.repositories.queries import insert

_AT_ONCE = 500
"""Chunks read, or deleted, with one statement."""


class StoreState(NamedTuple):
    store_id: str
    revision: int
    embedder: str


class FileState(NamedTuple):
    file_id: str
    filename: str
    attributes: Mapping[str, Any]
    readers: Sequence[str] | None
    revision: int
    chunks: int
    embedder: str


class IndexedChunk(NamedTuple):
    """A chunk as indexes need it."""

    id: int
    file_id: str
    words: bytes
    vector: bytes | None


class Passage(NamedTuple):
    """A chunk as it is shown."""

    id: int
    store_id: str
    file_id: str
    filename: str
    attributes: Mapping[str, Any]
    ordinal: int
    start: int
    end: int
    tokens: int
    section: bytes
    page: int | None
    text: bytes


class NamedFile(NamedTuple):
    """A file as searches need to know it."""

    file_id: str
    filename: str
    attributes: Mapping[str, Any]
    readers: Sequence[str] | None


async def put_file(
    session: AsyncSession,
    owner: Owner,
    store_id: str,
    file_id: str,
    *,
    filename: str,
    attributes: Mapping[str, Any],
    readers: Sequence[str] | None,
) -> None:
    """Add a file to a store's, or say something else of it; its chunks stay."""
    await put_files(session, owner, store_id, [NamedFile(file_id, filename, attributes, readers)])


async def put_files(session: AsyncSession, owner: Owner, store_id: str, files: Sequence[NamedFile]) -> None:
    """Add files as `put_file` does, with two statements however many they are."""
    await count_up(session, owner, store_id, create=True)
    new = insert(session, ChunkFile).values(store_id=store_id)
    changed = {name: new.excluded[name] for name in ("filename", "attributes", "readers")}
    rows = [
        {
            "file_id": each.file_id,
            "filename": each.filename[:512],
            "attributes": dict(each.attributes),
            "readers": None if each.readers is None else list(each.readers),
        }
        for each in files
    ]
    await session.execute(new.on_conflict_do_update(index_elements=["store_id", "file_id"], set_=changed), rows)


async def remove_file(session: AsyncSession, owner: Owner, store_id: str, file_id: str) -> None:
    """Remove a file from a store's. Its chunks are gone at once, and deleted by `delete_chunks`. Where there is none,
    nothing is done."""
    await remove_files(session, owner, store_id, [file_id])


async def remove_files(session: AsyncSession, owner: Owner, store_id: str, file_ids: Collection[str]) -> None:
    """Remove files as `remove_file` does."""
    if await count_up(session, owner, store_id) is not None:
        gone = and_(ChunkFile.store_id == store_id, ChunkFile.file_id.in_(file_ids))
        await session.execute(delete(ChunkFile).where(gone))


async def remove_store(store: Store, owner: Owner, store_id: str) -> None:
    """Remove a store's files, and delete its chunks. Interrupted, it may be called again."""
    async with store.transaction() as session:
        if await count_up(session, owner, store_id) is not None:
            await session.execute(delete(ChunkFile).where(ChunkFile.store_id == store_id))
            await session.execute(delete(ChunkStore).where(ChunkStore.store_id == store_id))
    await delete_chunks(store, store_id)


async def delete_chunks(store: Store, store_id: str, file_id: str | None = None) -> int:
    """Delete the chunks of a store, or of one file of it, that are gone, in steps; how many."""
    own = StoredChunk.store_id == store_id
    return await _delete_gone(store, own if file_id is None else and_(own, StoredChunk.file_id == file_id))


async def delete_lost_chunks(store: Store) -> int:
    """Delete all chunks that are gone: of organisations that were deleted, of deletions that were interrupted."""
    return await _delete_gone(store, true())


async def _delete_gone(store: Store, condition: ColumnElement[bool]) -> int:
    kept = and_(
        ChunkFile.store_id == StoredChunk.store_id,
        ChunkFile.file_id == StoredChunk.file_id,
        ChunkFile.generation <= StoredChunk.generation,  # those above it are being written
    )
    query = select(StoredChunk.id).where(condition, ~exists().where(kept)).limit(_AT_ONCE)
    deleted, ids = 0, [0]
    while ids:
        async with store.reporting() as session:
            ids = list(await session.scalars(query))
        if ids:
            async with store.transaction() as session:
                await session.execute(delete(StoredChunk).where(StoredChunk.id.in_(ids)))
        deleted += len(ids)
    return deleted


async def read_stores(store: Store, owner: Owner, store_ids: Sequence[str]) -> list[StoreState]:
    """State of those of an owner's stores that have files, in the order in which they are named."""
    columns = ChunkStore.store_id, ChunkStore.revision, ChunkStore.embedder
    query = select(*columns).where(_is_theirs(owner), ChunkStore.store_id.in_(store_ids))
    async with store.reading() as session:
        found = {row.store_id: StoreState(*row) for row in await session.execute(query)}
    return [found[each] for each in dict.fromkeys(store_ids) if each in found]


async def known_stores(store: Store, store_ids: Sequence[str]) -> set[str]:
    """Those of these stores that have files, whoever owns them."""
    found = set[str]()
    async with store.reading() as session:
        for first in range(0, len(store_ids), _AT_ONCE):
            named = ChunkStore.store_id.in_(store_ids[first : first + _AT_ONCE])
            found.update(await session.scalars(select(ChunkStore.store_id).where(named)))
    return found


async def read_files(store: Store, store_id: str) -> tuple[StoreState | None, list[FileState]]:
    """A store's state, and its files at that moment."""
    columns = [getattr(ChunkFile, name) for name in FileState._fields]
    joined = (
        select(ChunkStore.revision, ChunkStore.embedder, *columns)
        .join(ChunkFile, and_(ChunkFile.store_id == ChunkStore.store_id, ChunkFile.chunks > 0), isouter=True)
        .where(ChunkStore.store_id == store_id)
    )
    async with store.reading() as session:  # one statement: PostgreSQL shows each its own moment
        rows = (await session.execute(joined)).all()
    if not rows:
        return None, []
    revision, embedder = rows[0][:2]
    return StoreState(store_id, revision, embedder), [FileState(*row[2:]) for row in rows if row.file_id is not None]


async def sum_stores(session: AsyncSession, store_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Passages of each of these stores that has any, and the identity of the embedder whose vectors are searched."""
    query = (
        select(ChunkStore.store_id, func.sum(ChunkFile.chunks), ChunkStore.embedder)
        .join(ChunkFile, ChunkFile.store_id == ChunkStore.store_id)
        .where(ChunkStore.store_id.in_(store_ids))
        .group_by(ChunkStore.store_id, ChunkStore.embedder)
    )
    rows = await session.execute(query)
    return {store_id: (int(chunks or 0), embedder) for store_id, chunks, embedder in rows}


async def count_passages(store: Store, store_id: str, file_ids: Sequence[str]) -> dict[str, int]:
    """Passages of some files of a store, by their ids; a file that was not read yet has none."""
    query = select(ChunkFile.file_id, ChunkFile.chunks).where(
        ChunkFile.store_id == store_id, ChunkFile.file_id.in_(file_ids)
    )
    async with store.reading() as session:
        return {row.file_id: row.chunks for row in await session.execute(query)}


async def read_indexed(
    store: Store, store_id: str, file_ids: Sequence[str], embedder: str, *, after: int, limit: int, vectors: bool
) -> list[IndexedChunk]:
    """Chunks of some files with an id greater than `after`, by id, with their vectors by one embedder."""
    columns: list[Any] = [StoredChunk.id, StoredChunk.file_id, StoredChunk.words]
    query: Select[Any] = (
        select(*columns)
        .join(ChunkFile, is_of_file())
        .where(StoredChunk.store_id == store_id, StoredChunk.file_id.in_(file_ids), StoredChunk.id > after)
        .order_by(StoredChunk.id)
        .limit(limit)
    )
    if vectors:
        same = and_(ChunkVector.chunk_id == StoredChunk.id, ChunkVector.embedder == embedder)
        query = query.add_columns(ChunkVector.vector).join(ChunkVector, same, isouter=True)
    async with store.reading() as session:
        rows = (await session.execute(query)).all()
    return [IndexedChunk(row[0], row[1], row[2], row[3] if vectors else None) for row in rows]


async def read_passages(store: Store, owner: Owner, chunk_ids: Sequence[int]) -> dict[int, Passage]:
    """Chunks by id, those that are still there."""
    of_store = ChunkStore.store_id == StoredChunk.store_id
    tables = {"filename": ChunkFile, "attributes": ChunkFile}
    columns = [getattr(tables.get(name, StoredChunk), name) for name in Passage._fields]
    query: Select[Any] = select(*columns).join(ChunkFile, is_of_file()).join(ChunkStore, of_store)
    async with store.reading() as session:
        rows = await session.execute(query.where(_is_theirs(owner), StoredChunk.id.in_(chunk_ids)))
        return {row[0]: Passage(*row) for row in rows}


async def read_vectors(store: Store, chunk_ids: Sequence[int], embedder: str) -> dict[int, bytes]:
    query = select(ChunkVector.chunk_id, ChunkVector.vector).where(
        ChunkVector.embedder == embedder, ChunkVector.chunk_id.in_(chunk_ids)
    )
    async with store.reading() as session:
        return {row.chunk_id: row.vector for row in await session.execute(query)}


async def read_file_passages(store: Store, owner: Owner, store_id: str, file_id: str) -> list[Passage]:
    """A file's chunks, in order."""
    query = select(StoredChunk.id).join(ChunkFile, is_of_file())
    query = query.join(ChunkStore, ChunkStore.store_id == StoredChunk.store_id)
    query = query.where(_is_theirs(owner), is_file(store_id, file_id)).order_by(StoredChunk.ordinal)
    async with store.reading() as session:
        ids = list(await session.scalars(query))
    found: dict[int, Passage] = {}
    for first in range(0, len(ids), _AT_ONCE):
        found |= await read_passages(store, owner, ids[first : first + _AT_ONCE])
    return [found[each] for each in ids if each in found]


async def count_up(session: AsyncSession, owner: Owner, store_id: str, *, create: bool = False) -> int | None:
    """A store's next revision, by a lock on its row: changes of a store come one after the other. It is a time, so that
    none comes again after the database is restored from a backup. None: there is no such store."""
    if create:
        new = insert(session, ChunkStore).values(
            store_id=store_id,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            revision=0,
            embedder="",
        )
        await session.execute(new.on_conflict_do_nothing())
    now_ms = int(SYSTEM_CLOCK.time() * 1000)
    next_one = case((ChunkStore.revision < now_ms, now_ms), else_=ChunkStore.revision + 1)
    counted = update(ChunkStore).where(_is_theirs(owner), ChunkStore.store_id == store_id)
    found = await session.scalar(counted.values(revision=next_one).returning(ChunkStore.revision))
    if found is None and create:
        raise NotFoundError(f"There is no vector store {store_id[:80]!r}.")
    return found


def encoded(text: str) -> bytes:
    """UTF-8 of a text that may hold half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _is_theirs(owner: Owner) -> ColumnElement[bool]:
    return and_(ChunkStore.organization_id == owner.organization_id, ChunkStore.project_id == owner.project_id)


def is_file(store_id: str, file_id: str) -> ColumnElement[bool]:
    return and_(ChunkFile.store_id == store_id, ChunkFile.file_id == file_id)


def is_of_file() -> ColumnElement[bool]:
    """Whether a chunk is one of its file's own."""
    return and_(
        ChunkFile.store_id == StoredChunk.store_id,
        ChunkFile.file_id == StoredChunk.file_id,
        ChunkFile.generation == StoredChunk.generation,
    )
