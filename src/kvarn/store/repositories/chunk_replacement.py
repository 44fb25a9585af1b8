"""Replacement of a file's chunks: they are written in steps, as a generation of their own, and become the file's all at
once with the last one.

    generation 3: the file's      generation 8: written, unseen
    ---- last step ---->          generation 8: the file's      generation 3: gone, deleted in steps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import ChunkFile, ChunkStore, ChunkVector, StoredChunk
from kvarn.store.owner import Owner
from kvarn.store.repositories.chunks import count_up, delete_chunks, encoded, is_file, is_of_file
from kvarn.store.repositories.queries import insert

_AT_ONCE = 500
"""Chunks written in one transaction."""


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


class Replacement:
    """Chunks of a version of a file, which take the place of those that it has; of the same version only vectors are
    added. Interrupted, it may be begun again."""

    def __init__(
        self,
        store: Store,
        owner: Owner,
        store_id: str,
        file_id: str,
        chunks: Sequence[NewChunk],
        *,
        embedder: str,
        version: str,
    ) -> None:
        self._store = store
        self._owner = owner
        self._place = store_id, file_id
        self._chunks = chunks
        self._embedder = embedder
        self._version = version
        self._generation = 0
        self._ids: list[int] | None = None
        """Ids of the chunks that are there already, and get vectors."""
        self._is_other_embedder = False

    async def run(self) -> None:
        """Raises `NotFoundError`: there is no such file, or it has been removed meanwhile; `ConflictError`: another
        replacement of it came between."""
        steps = range(0, max(1, len(self._chunks)), _AT_ONCE)
        for first in steps:
            async with self._store.transaction() as session:
                changes = first in (steps[0], steps[-1])
                revision = await count_up(session, self._owner, self._place[0]) if changes else 0
                file = None if revision is None else await session.get(ChunkFile, self._place, with_for_update=True)
                if file is None:
                    store_id, file_id = self._place
                    raise NotFoundError(f"There is no file {file_id[:80]!r} in the vector store {store_id[:80]!r}.")
                if first == 0 and not await self._begin(session, file, revision or 0):
                    return
                await self._write(session, first)
                if first == steps[-1]:
                    await self._publish(session, file, revision or 0)
        await delete_chunks(self._store, *self._place)
        if self._is_other_embedder:
            await drop_old_vectors(self._store, self._place[0])

    async def _begin(self, session: AsyncSession, file: ChunkFile, revision: int) -> bool:
        """Whether anything is to be done."""
        if file.version != self._version:
            self._generation = revision
            return True
        if not self._embedder or file.embedder == self._embedder:
            return False
        self._generation = file.generation
        query = select(StoredChunk.id).join(ChunkFile, is_of_file()).where(is_file(*self._place))
        self._ids = list(await session.scalars(query.order_by(StoredChunk.ordinal)))
        if len(self._ids) != len(self._chunks):
            raise ConflictError(f"The file {self._place[1]} has other chunks in its version {self._version!r}.")
        return True

    async def _write(self, session: AsyncSession, first: int) -> None:
        chunks = self._chunks[first : first + _AT_ONCE]
        if not chunks:
            return
        if self._ids is None:
            await session.execute(insert(session, StoredChunk), [self._row(each) for each in chunks])
        if self._embedder:
            # Read back: SQLite returns the ids of many rows in any order, so SQLAlchemy would insert them one by one.
            ids = await self._read_ids(session, chunks) if self._ids is None else self._ids[first : first + _AT_ONCE]
            vectors = [
                {"chunk_id": chunk_id, "embedder": self._embedder, "vector": chunk.vector}
                for chunk_id, chunk in zip(ids, chunks, strict=True)
            ]
            await session.execute(insert(session, ChunkVector).on_conflict_do_nothing(), vectors)

    async def _read_ids(self, session: AsyncSession, chunks: Sequence[NewChunk]) -> Sequence[int]:
        some = StoredChunk.ordinal.between(chunks[0].ordinal, chunks[-1].ordinal)
        query = select(StoredChunk.id).where(self._is_written(), some)
        return (await session.scalars(query.order_by(StoredChunk.ordinal))).all()

    def _is_written(self) -> ColumnElement[bool]:
        """Whether a chunk is one of those that are written here."""
        store_id, file_id = self._place
        is_of = StoredChunk.store_id == store_id, StoredChunk.file_id == file_id
        return and_(*is_of, StoredChunk.generation == self._generation)

    def _row(self, chunk: NewChunk) -> dict[str, object]:
        row = chunk._asdict()
        del row["vector"]
        store_id, file_id = self._place
        texts = {"section": encoded(chunk.section), "text": encoded(chunk.text)}
        return row | texts | {"store_id": store_id, "file_id": file_id, "generation": self._generation}

    async def _publish(self, session: AsyncSession, file: ChunkFile, revision: int) -> None:
        """Make the chunks the file's own."""
        store_id, file_id = self._place
        written = await session.scalar(select(func.count()).where(self._is_written()))
        if written != len(self._chunks) or file.generation > self._generation:
            raise ConflictError(f"Another version of the file {file_id} was written meanwhile.")
        active = await session.scalar(select(ChunkStore.embedder).where(ChunkStore.store_id == store_id))
        if self._ids is None or active in ("", self._embedder):
            file.revision = revision
        file.version, file.generation, file.chunks = self._version, self._generation, len(self._chunks)
        file.embedder = self._embedder
        await session.flush()
        self._is_other_embedder = bool(self._embedder and active and active != self._embedder)
        if self._embedder and active != self._embedder:
            await _switch_embedder(session, store_id, active or "", self._embedder)


async def drop_old_vectors(store: Store, store_id: str) -> None:
    """Delete the vectors of a store by embedders that neither it nor its files use any more, in steps."""
    used = select(ChunkStore.embedder).where(ChunkStore.store_id == store_id)
    old = (
        select(ChunkVector.chunk_id, ChunkVector.embedder)
        .join(StoredChunk, StoredChunk.id == ChunkVector.chunk_id)
        .join(ChunkFile, is_of_file())
        .where(StoredChunk.store_id == store_id, ChunkVector.embedder != ChunkFile.embedder)
        .where(ChunkVector.embedder.not_in(used))
        .limit(_AT_ONCE)
    )
    while True:
        async with store.reporting() as session:
            rows = (await session.execute(old)).all()
        for embedder in {row.embedder for row in rows}:
            ids = [row.chunk_id for row in rows if row.embedder == embedder]
            gone = and_(ChunkVector.embedder == embedder, ChunkVector.chunk_id.in_(ids))
            async with store.transaction() as session:
                await session.execute(delete(ChunkVector).where(gone))
        if len(rows) < _AT_ONCE:
            return


async def _switch_embedder(session: AsyncSession, store_id: str, active: str, embedder: str) -> None:
    """Have a store's searches use an embedder's vectors once each of its files has them; at once where none are used
    yet."""
    others = and_(ChunkFile.store_id == store_id, ChunkFile.chunks > 0, ChunkFile.embedder != embedder)
    if not active or not await session.scalar(select(func.count()).select_from(ChunkFile).where(others)):
        switched = update(ChunkStore).where(ChunkStore.store_id == store_id).values(embedder=embedder)
        await session.execute(switched)
