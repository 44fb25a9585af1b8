"""Approximate search of vectors by usearch's graphs (HNSW), for stores far beyond 200,000 chunks.

A large segment has a graph of its rows, made in the background and kept in a file; until it is there the segment is
searched exactly. Scores are exact in any case: those that the graph finds are compared again. The graph knows no
filters: where a search may see most rows, more are asked for and the others left out; else the visible ones are
compared one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.index.dense import ExactSearch
from kvarn.retrieval.index.products import products
from kvarn.retrieval.index.ranking import Ranking, merged, top
from kvarn.retrieval.index.segment import Segment
from kvarn.retrieval.index.views import StoreView, View

GRAPH_SUFFIX = ".usearch"
_LEAST_ROWS = 5000
"""Rows of a segment below which comparing all takes no longer."""
_LEAST_VISIBLE = 0.5
_MORE = 2
"""Times as many neighbours are asked for as are wanted: the graph compares in float16."""

_log = logging.getLogger("kvarn.retrieval")


class UsearchSearch(ExactSearch):
    """Search by graphs. `folder`: place of the stores' files; `least_rows`: of a segment that has a graph."""

    def __init__(self, executor: Executor, max_bytes: int, folder: Path, *, least_rows: int = _LEAST_ROWS) -> None:
        super().__init__(executor, max_bytes)
        self._folder = folder
        self._least_rows = least_rows
        self._graphs = WeakKeyDictionary[Segment, Any]()
        self._begun = WeakSet[Segment]()
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="graphs")

    async def nearest(self, stores: Sequence[StoreView], queries: Array, count: int) -> list[Ranking]:
        for store in stores:
            for view in store.views:
                segment = view.segment
                if segment.size >= self._least_rows and segment.vectors.size and segment not in self._begun:
                    self._begun.add(segment)
                    folder = self._folder / store.snapshot.state.store_id
                    asyncio.get_running_loop().run_in_executor(self._builder, self._make, segment, folder)
        return await super().nearest(stores, queries, count)

    def close(self) -> None:
        self._builder.shutdown(wait=False, cancel_futures=True)

    def rank_view(self, view: View, queries: Array, count: int) -> list[Ranking]:
        graph, visible = self._graphs.get(view.segment), view.count / view.segment.size
        if graph is None or visible < _LEAST_VISIBLE:
            return super().rank_view(view, queries, count)
        return [self._walk(graph, view, query, count, visible) for query in queries]

    def _walk(self, graph: Any, view: View, query: Array, count: int, visible: float) -> Ranking:
        segment, wanted = view.segment, min(count, view.count)
        found = graph.search(np.asarray(query, np.float32), int(_MORE * count / visible), threads=1)
        rows = np.sort(np.asarray(found.keys, dtype=np.int64))
        rows = rows[view.visible[rows]]
        if len(rows) < min(wanted, int(np.count_nonzero(segment.has_vector & view.visible))):
            (ranking,) = super().rank_view(view, query[None], count)
            return ranking
        return merged([top(products(segment.vectors[rows], query), segment.chunk_ids[rows], rows >= 0, count)], count)

    def _make(self, segment: Segment, folder: Path) -> None:
        from usearch.index import Index  # an extra

        path = folder / f"{segment.name}{GRAPH_SUFFIX}"
        try:
            graph = Index.restore(str(path), view=True) if path.is_file() else None
            if graph is None or len(graph) != int(np.count_nonzero(segment.has_vector)):
                graph = Index(ndim=segment.vectors.shape[1], metric="ip", dtype="f16")
                rows = np.flatnonzero(segment.has_vector)
                graph.add(rows.astype(np.uint64), segment.vectors[rows], threads=1)
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                temporary = folder / f".{uuid4().hex}.tmp"
                graph.save(str(temporary))
                temporary.replace(path)
            self._graphs[segment] = graph
        except Exception:  # of a library: the segment is searched exactly
            _log.exception("a graph of %d vectors cannot be made", segment.size)
