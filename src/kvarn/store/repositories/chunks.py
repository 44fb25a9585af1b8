"""Chunks of the files in vector stores, with their words and vectors.

A change of a store counts its `revision` up in the change's own transaction: who keeps an index of the store asks for
that number, and reads what is new where it differs. A row of `chunk_files` decides what is there: chunks of a file
without one, or of an earlier revision of it, are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import ChunkFile, ChunkStore, ChunkVector, StoredChunk
from kvarn.store.owner import Owner
from kvarn.store.repositories.queries import insert

_AT_ONCE = 25
"""Files deleted in one transaction."""
_ROWS = 500
"""Chunks written with one statement."""


class NewChunk(NamedTuple):
    """A chunk as it is written. `vector`: float16 bytes; None: words only."""

    ordinal: int
    start: int
    end: int
    tokens: int
    section: str
    page: int | None
    text: str
    words: bytes
    vector: bytes | None


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
    await _count_up(session, owner, store_id, create=True)
    values = {
        "filename": filename[:512],
        "attributes": dict(attributes),
        "readers": None if readers is None else list(readers),
    }
    new = insert(session, ChunkFile).values(store_id=store_id, file_id=file_id, **values)
    await session.execute(new.on_conflict_do_update(index_elements=["store_id", "file_id"], set_=values))


async def remove_file(session: AsyncSession, owner: Owner, store_id: str, file_id: str) -> None:
    """Remove a file from a store's, with its chunks. Where there is none, nothing is done."""
    if await _count_up(session, owner, store_id) is not None:
        await session.execute(delete(ChunkFile).where(_is_file(store_id, file_id)))


async def remove_store(store: Store, owner: Owner, store_id: str) -> None:
    """Remove the chunks of a store, some files at a time. Interrupted, it may be called again."""
    files = select(ChunkFile.file_id).where(ChunkFile.store_id == store_id).limit(_AT_ONCE)
    while True:
        async with store.transaction() as session:
            if await _count_up(session, owner, store_id) is None:
                return
            found = list(await session.scalars(files))
            gone = and_(ChunkFile.store_id == store_id, ChunkFile.file_id.in_(found))
            await session.execute(delete(ChunkFile).where(gone))
            if len(found) < _AT_ONCE:
                await session.execute(delete(ChunkStore).where(ChunkStore.store_id == store_id))
                return


async def replace_chunks(
    session: AsyncSession,
    owner: Owner,
    store_id: str,
    file_id: str,
    chunks: Sequence[NewChunk],
    *,
    embedder: str,
    version: str,
) -> bool:
    """Put chunks in the place of a file's; of the same version only vectors are added. Returns whether anything
    changed. Raises `NotFoundError`: there is no such file."""
    revision = await _count_up(session, owner, store_id)
    file = None if revision is None else await session.get(ChunkFile, (store_id, file_id))
    if revision is None or file is None:
        raise NotFoundError(f"There is no file {file_id[:80]!r} in the vector store {store_id[:80]!r}.")
    if file.version == version and (file.embedder == embedder or not embedder):
        return False
    active = await session.scalar(select(ChunkStore.embedder).where(ChunkStore.store_id == store_id))
    is_new = file.version != version
    if is_new:
        await session.execute(delete(StoredChunk).where(_is_chunk_of(store_id, file_id)))
        ids = await _add_chunks(session, store_id, file_id, chunks)
    else:
        query = select(StoredChunk.id).where(_is_chunk_of(store_id, file_id)).order_by(StoredChunk.ordinal)
        ids = list(await session.scalars(query))
    file.version, file.chunks = version, len(ids)
    if embedder:
        await _add_vectors(session, ids, chunks, embedder)
    file.embedder = embedder
    if is_new or active in ("", embedder):
        file.revision = revision
    await session.flush()
    if embedder and active != embedder:
        await _switch_embedder(session, store_id, active or "", embedder)
    return True


async def drop_old_vectors(store: Store, store_id: str) -> int:
    """Delete the vectors of embedders that a store's files have none of any more, some at a time; how many."""
    dropped = 0
    while True:
        async with store.transaction() as session:
            kept = select(ChunkStore.embedder).where(ChunkStore.store_id == store_id)
            newest = select(ChunkFile.embedder).where(ChunkFile.store_id == store_id)
            old = (
                select(ChunkVector.chunk_id, ChunkVector.embedder)
                .join(StoredChunk, StoredChunk.id == ChunkVector.chunk_id)
                .where(StoredChunk.store_id == store_id)
                .where(ChunkVector.embedder.not_in(kept), ChunkVector.embedder.not_in(newest))
                .limit(_ROWS)
            )
            rows = (await session.execute(old)).all()
            for embedder in {row.embedder for row in rows}:
                ids = [row.chunk_id for row in rows if row.embedder == embedder]
                gone = and_(ChunkVector.embedder == embedder, ChunkVector.chunk_id.in_(ids))
                await session.execute(delete(ChunkVector).where(gone))
        dropped += len(rows)
        if len(rows) < _ROWS:
            return dropped


async def read_stores(store: Store, owner: Owner, store_ids: Sequence[str]) -> list[StoreState]:
    """State of those of an owner's stores that have files, in the order in which they are named."""
    columns = ChunkStore.store_id, ChunkStore.revision, ChunkStore.embedder
    query = select(*columns).where(_is_theirs(owner), ChunkStore.store_id.in_(store_ids))
    async with store.reading() as session:
        found = {row.store_id: StoreState(*row) for row in await session.execute(query)}
    return [found[each] for each in dict.fromkeys(store_ids) if each in found]


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


async def read_indexed(
    store: Store, store_id: str, file_ids: Sequence[str], embedder: str, *, after: int, limit: int, vectors: bool
) -> list[IndexedChunk]:
    """Chunks of some files with an id greater than `after`, by id, with their vectors by one embedder."""
    columns: list[Any] = [StoredChunk.id, StoredChunk.file_id, StoredChunk.words]
    query: Select[Any] = (
        select(*columns)
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
    of_file = and_(ChunkFile.store_id == StoredChunk.store_id, ChunkFile.file_id == StoredChunk.file_id)
    of_store = ChunkStore.store_id == StoredChunk.store_id
    tables = {"filename": ChunkFile, "attributes": ChunkFile}
    columns = [getattr(tables.get(name, StoredChunk), name) for name in Passage._fields]
    query: Select[Any] = select(*columns).join(ChunkFile, of_file).join(ChunkStore, of_store)
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
    query = select(StoredChunk.id).join(ChunkStore, ChunkStore.store_id == StoredChunk.store_id)
    query = query.where(_is_theirs(owner), _is_chunk_of(store_id, file_id)).order_by(StoredChunk.ordinal)
    async with store.reading() as session:
        ids = list(await session.scalars(query))
    found: dict[int, Passage] = {}
    for first in range(0, len(ids), _ROWS):
        found |= await read_passages(store, owner, ids[first : first + _ROWS])
    return [found[each] for each in ids if each in found]


async def _count_up(session: AsyncSession, owner: Owner, store_id: str, *, create: bool = False) -> int | None:
    """A store's next revision, by a lock on its row: changes of a store come one after the other. None: there is no
    such store."""
    if create:
        new = insert(session, ChunkStore).values(
            store_id=store_id,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            revision=0,
            embedder="",
        )
        await session.execute(new.on_conflict_do_nothing())
    counted = update(ChunkStore).where(_is_theirs(owner), ChunkStore.store_id == store_id)
    revision = counted.values(revision=ChunkStore.revision + 1).returning(ChunkStore.revision)
    found = await session.scalar(revision)
    if found is None and create:
        raise NotFoundError(f"There is no vector store {store_id[:80]!r}.")
    return found


async def _add_chunks(session: AsyncSession, store_id: str, file_id: str, chunks: Sequence[NewChunk]) -> list[int]:
    new = insert(session, StoredChunk).returning(StoredChunk.id, sort_by_parameter_order=True)
    ids: list[int] = []
    for first in range(0, len(chunks), _ROWS):
        rows = [
            {
                "store_id": store_id,
                "file_id": file_id,
                "ordinal": each.ordinal,
                "start": each.start,
                "end": each.end,
                "tokens": each.tokens,
                "section": encoded(each.section),
                "page": each.page,
                "text": encoded(each.text),
                "words": each.words,
            }
            for each in chunks[first : first + _ROWS]
        ]
        ids += list(await session.scalars(new, rows))
    return ids


async def _add_vectors(session: AsyncSession, ids: Sequence[int], chunks: Sequence[NewChunk], embedder: str) -> None:
    for first in range(0, len(ids), _ROWS):
        part = slice(first, first + _ROWS)
        rows = [
            {"chunk_id": chunk_id, "embedder": embedder, "vector": chunk.vector}
            for chunk_id, chunk in zip(ids[part], chunks[part], strict=True)
        ]
        await session.execute(insert(session, ChunkVector).on_conflict_do_nothing(), rows)


async def _switch_embedder(session: AsyncSession, store_id: str, active: str, embedder: str) -> None:
    """Have a store's searches use an embedder's vectors once each of its files has them; at once where none are used
    yet."""
    others = and_(ChunkFile.store_id == store_id, ChunkFile.chunks > 0, ChunkFile.embedder != embedder)
    if not active or not await session.scalar(select(func.count()).select_from(ChunkFile).where(others)):
        switched = update(ChunkStore).where(ChunkStore.store_id == store_id).values(embedder=embedder)
        await session.execute(switched)


def encoded(text: str) -> bytes:
    """UTF-8 of a text that may hold half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _is_theirs(owner: Owner) -> Any:
    return and_(ChunkStore.organization_id == owner.organization_id, ChunkStore.project_id == owner.project_id)


def _is_file(store_id: str, file_id: str) -> Any:
    return and_(ChunkFile.store_id == store_id, ChunkFile.file_id == file_id)


def _is_chunk_of(store_id: str, file_id: str) -> Any:
    return and_(StoredChunk.store_id == store_id, StoredChunk.file_id == file_id)
