"""Chunks of vector stores: put, replaced and removed in the database, with the indexes of this process beside it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

from kvarn.config.retrieval import RetrievalConfig
from kvarn.retrieval.chunking import embedded_text
from kvarn.retrieval.embedding import Embedders
from kvarn.retrieval.index.dense import ExactSearch, VectorSearch
from kvarn.retrieval.index.pgvector import PgvectorSearch
from kvarn.retrieval.index.snapshots import Snapshots
from kvarn.retrieval.index.usearch import UsearchSearch
from kvarn.retrieval.index.words import pack_words, word_hash
from kvarn.retrieval.types import AttributeValue, Chunk, Vectors
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import Owner
from kvarn.store.repositories import chunks as repository
from kvarn.store.repositories.chunk_replacement import NewChunk, Replacement
from kvarn.store.repositories.chunks import Passage, decoded

ResultT = TypeVar("ResultT")

_MIB = 1 << 20
_THREADS = 2
_WARM_ROWS = 2000
"""Chunks that are written to a store before its index is read for them without a search."""
_MANY = 4096
"""Rows of which a ranking takes longer than a thread takes to begin."""

_log = logging.getLogger("kvarn.retrieval")


class StoredChunks:
    """Chunks and vectors of the database, and the indexes over them. `folder`: place of the indexes' files."""

    def __init__(self, store: Store, config: RetrievalConfig, folder: Path, embedders: Embedders) -> None:
        self._store = store
        self._config = config
        self.embedders = embedders
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="retrieval")
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="indexes")  # searches do not wait for other indexes
        self._vectors = self._vector_search(folder)
        size = config.memory_mib * _MIB
        self._snapshots = Snapshots(store, folder, self._builder, size, vectors=self._vectors.in_segments)
        self._written = Counter[str]()
        """Chunks written to each store since its index was last read for them."""
        self._tasks = set[asyncio.Task[None]]()

    def _vector_search(self, folder: Path) -> VectorSearch:
        size = self._config.memory_mib * _MIB
        if self._config.index == "usearch":
            return UsearchSearch(self._executor, size, folder)
        if self._config.index == "pgvector":
            return PgvectorSearch(self._store)
        return ExactSearch(self._executor, size)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._vectors.close()
        for executor in (self._executor, self._builder):
            executor.shutdown(wait=False, cancel_futures=True)

    async def put_file(
        self,
        owner: Owner,
        store_id: str,
        file_id: str,
        *,
        filename: str,
        attributes: Mapping[str, AttributeValue],
        readers: Sequence[str] | None = None,
    ) -> None:
        """Say what searches need to know of a file: before its first chunks, and where it changes. Within a
        transaction of one's own: `put_file` of `store/repositories/chunks.py`; so with `remove_file`."""
        async with self._store.transaction() as session:
            await repository.put_file(
                session, owner, store_id, file_id, filename=filename, attributes=attributes, readers=readers
            )

    async def replace_file(
        self,
        owner: Owner,
        store_id: str,
        file_id: str,
        chunks: Sequence[Chunk],
        vectors: Vectors | None,
        *,
        embedder: str,
        version: str,
    ) -> None:
        """Put a file's chunks in the place of those of earlier versions, in one transaction. The same again changes
        nothing. `vectors` is None where no embedder answers: only words are searched; `embedder` is then empty."""
        new = await self._run(_MANY, lambda: _new_chunks(chunks, vectors))
        place = store_id, file_id
        await Replacement(self._store, owner, *place, new, embedder=embedder, version=version).run()
        self._written[store_id] += len(new)
        if self._written[store_id] >= _WARM_ROWS:
            del self._written[store_id]
            self._tasks.add(task := asyncio.create_task(self._warm(owner, store_id)))
            task.add_done_callback(self._tasks.discard)

    async def _warm(self, owner: Owner, store_id: str) -> None:
        """Read what is new into a store's index, so that the next search has less to read."""
        try:
            for state in await repository.read_stores(self._store, owner, [store_id]):
                await self._snapshots.get(state)
        except StoreAwayError as error:
            _log.info("the index of %s is brought up to date by the next search: %s", store_id, error)

    async def read_file(self, owner: Owner, store_id: str, file_id: str) -> Sequence[Chunk]:
        """Read a file's chunks, in order; an unknown one has none."""
        passages = await repository.read_file_passages(self._store, owner, store_id, file_id)
        return [chunk_of(each) for each in passages]

    async def remove_file(self, owner: Owner, store_id: str, file_id: str) -> None:
        async with self._store.transaction() as session:
            await repository.remove_file(session, owner, store_id, file_id)
        await repository.delete_chunks(self._store, store_id, file_id)

    async def sweep(self) -> None:
        """Delete what the indexes of this process hold of stores and files that are no more: they expired, went with
        their organisation, or were deleted elsewhere. Chunks are swept with the database's other rows."""
        await self._snapshots.sweep()

    async def remove_store(self, owner: Owner, store_id: str) -> None:
        """Remove a store's chunks, its indexes, and the vectors of queries that its project has asked."""
        known = await repository.read_stores(self._store, owner, [store_id])
        await repository.remove_store(self._store, owner, store_id)
        self.embedders.forget(owner)
        if known:
            await self._snapshots.drop(store_id)

    async def _run(self, size: int, work: Callable[[], ResultT]) -> ResultT:
        """Do work on so many rows: here where it takes less than to hand it to a thread."""
        if size < _MANY:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _new_chunks(chunks: Sequence[Chunk], vectors: Vectors | None) -> list[NewChunk]:
    hash_of = cache(word_hash)
    packed = [None] * len(chunks) if vectors is None else [each.astype("<f2").tobytes() for each in vectors]
    return [
        NewChunk(
            each.ordinal,
            each.start,
            each.end,
            each.tokens,
            each.section,
            each.page,
            each.text,
            pack_words(embedded_text(each), hash_of),
            v,
        )
        for each, v in zip(chunks, packed, strict=True)
    ]


def chunk_of(passage: Passage) -> Chunk:
    return Chunk(
        passage.ordinal,
        passage.start,
        passage.end,
        decoded(passage.text),
        passage.tokens,
        decoded(passage.section),
        passage.page,
    )
