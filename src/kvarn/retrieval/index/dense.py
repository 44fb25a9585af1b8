"""Exact search of vectors: every visible row is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.index.products import products
from kvarn.retrieval.index.ranking import Ranking, merged, top
from kvarn.retrieval.index.segment import Segment
from kvarn.retrieval.index.views import StoreView, View

_MANY = 4096
"""Rows of which a ranking takes longer than a thread takes to begin."""
_FEW = 8
"""A part of a segment smaller than the eighth is compared by itself."""


class VectorSearch(Protocol):
    """A way to search vectors."""

    @property
    def in_segments(self) -> bool:
        """Whether segments need to hold the vectors."""
        ...

    def close(self) -> None: ...

    async def nearest(self, stores: Sequence[StoreView], queries: Array, count: int) -> list[Ranking]:
        """A ranking by cosine for each query (float32 [q, d], of length 1) among the rows of the views."""
        ...


class FloatVectors:
    """Copies of segments' vectors in float32, within a budget: a product with float16 takes ten times as long. Those
    not used for longest go first. Threads may use it together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._copies = WeakKeyDictionary[Segment, Array]()
        """In the order of their last use."""
        self._lock = Lock()

    def get(self, segment: Segment) -> Array | None:
        """The copy of a segment's vectors; None: it has no room."""
        size = 2 * segment.vectors.nbytes
        if size > self._max_bytes:
            return None
        with self._lock:
            copy = self._copies.pop(segment, None)
            if copy is None:
                held = list(self._copies.items())
                used = sum(each.nbytes for _, each in held)
                for oldest, each in held:
                    if used + size <= self._max_bytes:
                        break
                    self._copies.pop(oldest, None)
                    used -= each.nbytes
                copy = segment.vectors.astype(np.float32)
            self._copies[segment] = copy
            return copy


class ExactSearch:
    """Every visible row is compared, on the given executor: the recall is 1."""

    in_segments = True

    def __init__(self, executor: Executor, max_bytes: int) -> None:
        self._executor = executor
        self._copies = FloatVectors(max_bytes)

    def close(self) -> None:
        return

    async def nearest(self, stores: Sequence[StoreView], queries: Array, count: int) -> list[Ranking]:
        views = [view for store in stores for view in store.views]
        if len(queries) * sum(view.segment.size for view in views) < _MANY:
            return self.rank(views, queries, count)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self.rank(views, queries, count))

    def rank(self, views: Sequence[View], queries: Array, count: int) -> list[Ranking]:
        found: list[list[Ranking]] = [[] for _ in queries]
        for view in views:
            if view.segment.vectors.shape[1] != queries.shape[1]:
                continue  # it has none
            for ranking, each in zip(found, self.rank_view(view, queries, count), strict=True):
                ranking.append(each)
        return [merged(rankings, count) for rankings in found]

    def rank_view(self, view: View, queries: Array, count: int) -> list[Ranking]:
        segment, allowed = view.segment, view.visible & view.segment.has_vector
        number = int(np.count_nonzero(allowed))
        if number < segment.size // _FEW:
            ids, vectors, of = segment.chunk_ids[allowed], segment.vectors[allowed], np.ones(number, bool)
        else:
            copy = self._copies.get(segment)
            ids, vectors, of = segment.chunk_ids, segment.vectors if copy is None else copy, allowed
        return [top(products(vectors, query), ids, of, count) for query in queries]
