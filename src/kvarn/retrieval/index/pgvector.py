"""Search of vectors by pgvector: PostgreSQL has them, and its graph (HNSW) is walked with the filters of the search."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.index.ranking import DECIMALS, Ranking
from kvarn.retrieval.index.views import StoreView
from kvarn.retrieval.types import EmbedderAwayError
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.repositories import chunk_halfvec as repository


class PgvectorSearch:
    """Search in PostgreSQL. Vectors that are not in pgvector's table yet are copied there before a search."""

    in_segments = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._preparing = asyncio.Lock()
        self._copying = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """By store: the copy of a large one makes no other wait."""
        self._prepared = False
        self._indexed: set[int] = set()  # sizes of vectors that have a graph

    def close(self) -> None:
        return

    async def nearest(self, stores: Sequence[StoreView], queries: Array, count: int) -> list[Ranking]:
        """Raises `EmbedderAwayError` where the extension cannot be used."""
        size = queries.shape[1]
        async with self._preparing:
            await self._prepare(size)
        for store in stores:
            async with self._copying[store.snapshot.state.store_id]:
                await self._copy(store, size)
        files = {
            store.snapshot.state.store_id: None if store.files is None else sorted(store.files) for store in stores
        }
        embedder = stores[0].snapshot.state.embedder
        return [await self._nearest(files, embedder, query, count) for query in queries]

    async def _nearest(self, files: dict[str, list[str] | None], embedder: str, query: Array, count: int) -> Ranking:
        found = await repository.nearest_chunks(self._store, files, embedder, _spelled(query), len(query), count)
        ranking = [(chunk_id, round(score, DECIMALS)) for chunk_id, score in found]
        return sorted(ranking, key=lambda each: (-each[1], each[0]))

    async def _prepare(self, size: int) -> None:
        try:
            if not self._prepared:
                await repository.prepare(self._store)
                self._prepared = True
            if size not in self._indexed:
                await repository.index_dimensions(self._store, size)
                self._indexed.add(size)
        except StoreError as error:
            raise EmbedderAwayError(f"pgvector cannot be used: {error}") from error

    async def _copy(self, view: StoreView, size: int) -> None:
        state = view.snapshot.state
        if await repository.copied_revision(self._store, state.store_id, state.embedder) >= state.revision:
            return
        after = 0
        while rows := await repository.read_missing(self._store, state.store_id, state.embedder, after):
            spelled = {chunk_id: _spelled(np.frombuffer(vector, "<f2")) for chunk_id, vector in rows}
            await repository.add_copies(self._store, state.embedder, size, spelled)
            after = rows[-1][0]
        await repository.note_copied(self._store, state.store_id, state.embedder, state.revision)


def _spelled(vector: Array) -> str:
    """A vector as pgvector reads it."""
    return "[" + ",".join(map(repr, np.asarray(vector, dtype=np.float32).tolist())) + "]"
