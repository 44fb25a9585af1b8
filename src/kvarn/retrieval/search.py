"""Searching vector stores.

    access     owner, readers, filters                             which rows may be seen at all
    rankings   words (BM25) and vectors (cosine), for each query
    fusion     means of the scores
    rerank     a served cross-encoder
    choice     unlike each other, not all of one file, above the threshold

A part that fails is left out, and the result says which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from kvarn.config.retrieval import RetrievalConfig
from kvarn.retrieval.chunking import embedded_text
from kvarn.retrieval.embedding import Embedders
from kvarn.retrieval.filters import compile_filter
from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.index.ranking import Ranking, bm25, cap_by_source, diversify, fuse
from kvarn.retrieval.index.segment import vectors_of
from kvarn.retrieval.index.views import MayRead, StoreView, view_of
from kvarn.retrieval.index.words import query_hashes
from kvarn.retrieval.reranking import Reranker, RerankerAwayError
from kvarn.retrieval.stored_chunks import StoredChunks, chunk_of
from kvarn.retrieval.types import EmbedderAwayError, Hit, Scores, SearchResult
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories import chunks as repository
from kvarn.store.repositories.chunks import FileState, Passage

_MAX_QUERIES, _MAX_QUERY_CHARS = 32, 4096
"""Bounds of what is searched, whoever asks: routes refuse more, a model's call is cut."""
_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Candidate:
    passage: Passage
    score: float
    scores: Scores


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Rankings by words and by vectors, for each query, and what was made of them."""

    words: Sequence[Ranking]
    vectors: Sequence[Ranking]
    fused: Ranking

    def scores_of(self, chunk_ids: Collection[int]) -> dict[int, Scores]:
        words, vectors = _best_scores(self.words, chunk_ids), _best_scores(self.vectors, chunk_ids)
        return {each: Scores(words.get(each), vectors.get(each), fused) for each, fused in self.fused}


class Retriever(StoredChunks):
    """Searches of vector stores, beside their chunks."""

    def __init__(
        self, store: Store, config: RetrievalConfig, folder: Path, embedders: Embedders, reranker: Reranker
    ) -> None:
        super().__init__(store, config, folder, embedders)
        self._reranker = reranker

    async def search(
        self,
        principal: Principal,
        store_ids: Sequence[str],
        queries: Sequence[str],
        *,
        filters: Mapping[str, Any] | None = None,
        max_results: int = 10,
        score_threshold: float = 0.0,
        ranker: str = "auto",
        readers: frozenset[str] | None = None,
    ) -> SearchResult:
        """Find the chunks that answer the queries best. Owner, filters (OpenAI's comparison and compound filters over
        attributes, of valid shape) and readers (of documents with an access list; None: whoever asks may read all) hold
        before anything is ranked. Raises `ApiError`: the ranker is none, or not for this key; `StoreAwayError`."""
        may_read = _may_read(filters, readers)
        model = self._reranker.choose(principal, ranker)
        cut = (query[:_MAX_QUERY_CHARS] for query in queries[:_MAX_QUERIES])
        asked = [query for query in dict.fromkeys(cut) if query.strip()]
        if not asked:
            return SearchResult(())
        depth = self._depth(max_results, model)
        for _ in range(_TRIES):
            degraded: list[str] = []
            stores = await self._view(principal.owner, store_ids, may_read)
            ranked = await self._rank(principal, stores, asked, depth, degraded)
            candidates = await self._read(principal.owner, ranked)
            if len(candidates) == len(ranked.fused):
                break  # else files were replaced or removed meanwhile
        if model is not None and candidates:
            candidates = await self._rerank(principal, model, " ".join(asked), candidates, degraded)
        candidates = [each for each in candidates if each.score >= score_threshold]
        chosen = await self._choose(candidates, stores, max_results)
        return SearchResult(tuple(map(_hit, chosen)), tuple(dict.fromkeys(degraded)))

    async def _view(self, owner: Owner, store_ids: Sequence[str], may_read: MayRead | None) -> list[StoreView]:
        """Parts of the stores that a search may see, as they are now."""
        states = await repository.read_stores(self._store, owner, store_ids)
        found = await asyncio.gather(*[self._snapshots.get(state) for state in states])
        snapshots = [snapshot for snapshot in found if snapshot is not None]
        files = 0 if may_read is None else sum(len(snapshot.files) for snapshot in snapshots)
        return await self._run(files, lambda: [view_of(snapshot, may_read) for snapshot in snapshots])

    async def _rank(
        self, principal: Principal, stores: Sequence[StoreView], queries: Sequence[str], depth: int, degraded: list[str]
    ) -> _Ranked:
        words, vectors = await asyncio.gather(
            self._rank_words(stores, queries), self._rank_vectors(principal, stores, queries, degraded)
        )
        return _Ranked(words, vectors, fuse(words, vectors, self._config.candidates, depth))

    def _depth(self, max_results: int, model: str | None) -> int:
        more = 2 * max_results if self._config.diversity or self._config.max_chunks_per_file else max_results
        return more if model is None else max(more, self._config.rerank_candidates)

    async def _rank_words(self, stores: Sequence[StoreView], queries: Sequence[str]) -> list[Ranking]:
        views = [view for store in stores for view in store.views]
        count = self._config.candidates
        rows = len(queries) * sum(view.segment.size for view in views)
        return await self._run(rows, lambda: [bm25(views, query_hashes(query), count) for query in queries])

    async def _rank_vectors(
        self, principal: Principal, stores: Sequence[StoreView], queries: Sequence[str], degraded: list[str]
    ) -> list[Ranking]:
        """Rankings by vectors, for each embedder of the stores; none where none answers."""
        rankings: list[Ranking] = []
        searched = [store for store in stores if store.views]
        for identity in sorted({store.snapshot.state.embedder for store in searched}):
            having = [store for store in searched if store.snapshot.state.embedder == identity]
            names = ", ".join(store.snapshot.state.store_id for store in having)
            if not identity:
                degraded.append(f"No vectors of {names} are there: only words were compared.")
                continue
            degraded.extend(_without_vectors(having, identity))
            try:
                embedded = await self.embedders.embed_queries(principal, identity, queries)
                rankings += await self._vectors.nearest(having, embedded, self._config.candidates)
            except (EmbedderAwayError, StoreAwayError) as error:
                degraded.append(f"The vectors of {names} were not searched, only words were compared: {error}")
        return rankings

    async def _read(self, owner: Owner, ranked: _Ranked) -> list[_Candidate]:
        passages = await repository.read_passages(self._store, owner, [chunk_id for chunk_id, _ in ranked.fused])
        scores = ranked.scores_of(passages)
        return [_Candidate(passages[each], score, scores[each]) for each, score in ranked.fused if each in passages]

    async def _rerank(
        self, principal: Principal, model: str, query: str, candidates: list[_Candidate], degraded: list[str]
    ) -> list[_Candidate]:
        """The first candidates by the means of the reranker's scores and their own: a small reranker alone is no better
        than the fusion, both together are. The others are left out, for the reranker has not read them."""
        first = candidates[: self._config.rerank_candidates]
        texts = [embedded_text(chunk_of(each.passage)) for each in first]
        try:
            scores = await self._reranker.score(principal, model, query, texts)
        except RerankerAwayError as error:
            degraded.append(f"Results were not reranked, and are as they were fused: {error}")
            return candidates
        scored = [
            replace(each, score=(each.score + score) / 2, scores=replace(each.scores, reranker=score))
            for each, score in zip(first, scores, strict=True)
        ]
        return sorted(scored, key=lambda each: -each.score)

    async def _choose(
        self, candidates: list[_Candidate], stores: Sequence[StoreView], max_results: int
    ) -> list[_Candidate]:
        """Those that are shown, by their scores."""
        cap = self._config.max_chunks_per_file
        if self._config.diversity and len(candidates) > 1:
            vectors = await self._vectors_of(candidates, stores)
            count = len(candidates) if cap else max_results
            kept = diversify([each.score for each in candidates], vectors, self._config.diversity, count)
            candidates = [candidates[place] for place in kept]
        if cap:
            places = cap_by_source([each.passage.file_id for each in candidates], cap, max_results)
            candidates = [candidates[place] for place in places]
        return sorted(candidates[:max_results], key=lambda each: -each.score)

    async def _vectors_of(self, candidates: Sequence[_Candidate], stores: Sequence[StoreView]) -> Array:
        """Vectors of candidates; those of different embedders are unlike: each has places of its own."""
        parts: list[Array] = []
        for embedder in sorted({store.snapshot.state.embedder for store in stores} - {""}):
            having = [store for store in stores if store.snapshot.state.embedder == embedder]
            names = {store.snapshot.state.store_id for store in having}
            ids = [each.passage.id for each in candidates if each.passage.store_id in names]
            if self._vectors.in_segments:
                found = vectors_of([view.segment for store in having for view in store.views], ids)
            else:
                read = await repository.read_vectors(self._store, ids, embedder)
                found = {chunk_id: np.frombuffer(vector, "<f2") for chunk_id, vector in read.items()}
            if found:
                none = np.zeros(max(map(len, found.values())), np.float16)
                parts.append(np.stack([found.get(each.passage.id, none) for each in candidates]).astype(np.float32))
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(candidates), 1), np.float32)


def _may_read(filters: Mapping[str, Any] | None, readers: frozenset[str] | None) -> MayRead | None:
    passes = None if filters is None else compile_filter(filters)
    if passes is None and readers is None:
        return None

    def may_read(file: FileState) -> bool:
        if readers is not None and file.readers is not None and readers.isdisjoint(file.readers):
            return False
        return passes is None or passes(file.attributes)

    return may_read


def _without_vectors(stores: Sequence[StoreView], identity: str) -> list[str]:
    found = []
    for store in stores:
        files = store.snapshot.files.values()
        missing = sum(1 for each in files if not each.embedder and (store.files is None or each.file_id in store.files))
        if missing:
            name = store.snapshot.state.store_id
            found.append(f"{missing} files of {name} have no vectors yet: only their words were compared.")
    return found


def _best_scores(rankings: Sequence[Ranking], chunk_ids: Collection[int]) -> dict[int, float]:
    best: dict[int, float] = {}
    for chunk_id, score in chain.from_iterable(rankings):
        if chunk_id in chunk_ids:
            best[chunk_id] = max(score, best.get(chunk_id, score))
    return best


def _hit(candidate: _Candidate) -> Hit:
    passage = candidate.passage
    where = passage.store_id, passage.file_id, passage.filename, chunk_of(passage)
    return Hit(*where, round(min(1.0, max(0.0, candidate.score)), 6), passage.attributes, candidate.scores)
