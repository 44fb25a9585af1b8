"""A retriever over a real database with embedders and rerankers that a test controls, and a plain search of lists."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvarn.config.retrieval import RetrievalConfig
from kvarn.retrieval.index.words import words
from kvarn.retrieval.search import Retriever
from kvarn.retrieval.types import Chunk, EmbedderAwayError
from kvarn.store.engine import Store
from kvarn.store.owner import Owner, Principal

IDENTITY = "fake@1"
HALVES = [np.array([a, b, c, d]) / 2 for a in (1, -1) for b in (1, -1) for c in (1, -1) for d in (1, -1)]
AXES = [sign * np.eye(4)[axis] for axis in range(4) for sign in (1, -1)]
EXACT = [each.astype(np.float32) for each in [*HALVES, *AXES]]
"""Vectors of length 1 whose products are exact in any order."""


def vector_of(text: str) -> np.ndarray[Any, Any]:
    """One of the exact vectors, by the text."""
    return EXACT[sum(map(ord, text)) % len(EXACT)]


@dataclass
class FakeEmbedders:
    """Stands in for `Embedders`."""

    identity: str = IDENTITY
    away: str = ""
    """Why it does not answer."""
    forgotten: list[Owner] = field(default_factory=list)

    async def embed_queries(self, principal: Principal, identity: str, queries: Sequence[str]) -> Any:
        if self.away:
            raise EmbedderAwayError(self.away)
        if identity != self.identity:
            raise EmbedderAwayError(f"they are of {identity}, and {self.identity} is served")
        return np.stack([vector_of(query) for query in queries])

    def forget(self, owner: Owner) -> None:
        self.forgotten.append(owner)


@dataclass
class FakeReranker:
    """Stands in for `Reranker`: a text's score is the share of a letter in it."""

    letter: str = ""
    away: Exception | None = None

    def choose(self, principal: Principal, ranker: str) -> str | None:
        return "fake" if self.letter and ranker != "none" else None

    async def score(self, principal: Principal, name: str, query: str, texts: Sequence[str]) -> list[float]:
        if self.away is not None:
            raise self.away
        return [text.count(self.letter) / (len(text) or 1) for text in texts]


PLAIN = RetrievalConfig(diversity=0)


@dataclass
class RetrievalWorld:
    store: Store
    folder: Path
    config: RetrievalConfig = PLAIN
    embedders: FakeEmbedders = field(default_factory=FakeEmbedders)
    reranker: FakeReranker = field(default_factory=FakeReranker)

    def __post_init__(self) -> None:
        self.retriever = self.another()

    def another(self, config: RetrievalConfig | None = None) -> Retriever:
        """A retriever of another process, or of this one after a restart."""
        fakes: Any = (self.embedders, self.reranker)
        return Retriever(self.store, config or self.config, self.folder, *fakes)

    async def add(
        self,
        owner: Owner,
        store_id: str,
        file_id: str,
        texts: Iterable[str],
        *,
        attributes: Mapping[str, Any] | None = None,
        readers: Sequence[str] | None = None,
        embedder: str | None = None,
        version: str = "1",
    ) -> None:
        """Put a file with these chunks into a store."""
        name = f"{file_id}.txt"
        await self.retriever.put_file(
            owner, store_id, file_id, filename=name, attributes=attributes or {}, readers=readers
        )
        identity = self.embedders.identity if embedder is None else embedder
        chunks = chunks_of(texts)
        vectors = vectors_of(chunks) if identity else None
        await self.retriever.replace_file(owner, store_id, file_id, chunks, vectors, embedder=identity, version=version)


def chunks_of(texts: Iterable[str]) -> list[Chunk]:
    made, start = [], 0
    for ordinal, text in enumerate(texts):
        made.append(Chunk(ordinal, start, start + len(text), text, len(text)))
        start += len(text) + 1
    return made


def vectors_of(chunks: Sequence[Chunk]) -> Any:
    return np.array([vector_of(each.text) for each in chunks], dtype=np.float16).reshape(-1, 4)


@dataclass(frozen=True)
class Row:
    """A chunk of a plain list, in the order in which chunks were written."""

    number: int
    file_id: str
    text: str


def plain_bm25(rows: Sequence[Row], query: str) -> list[tuple[Row, float]]:
    texts = [Counter(words(row.text)) for row in rows]
    average = sum(sum(each.values()) for each in texts) / len(rows) if rows else 1
    scores: defaultdict[int, float] = defaultdict(float)
    for word in set(words(query)):
        having = sum(1 for each in texts if word in each)
        weight = math.log(1 + (len(rows) - having + 0.5) / (having + 0.5))
        for place, text in enumerate(texts):
            if word in text:
                damping = 1.2 * (0.25 + 0.75 * sum(text.values()) / average)
                scores[place] += weight * 2.2 * text[word] / (text[word] + damping)
    return _ranked([(rows[place], score) for place, score in scores.items()])


def plain_dense(rows: Sequence[Row], query: str) -> list[tuple[Row, float]]:
    wanted = vector_of(query)
    return _ranked([(row, float(vector_of(row.text) @ wanted)) for row in rows])


def plain_search(rows: Sequence[Row], queries: Sequence[str], depth: int) -> list[tuple[Row, float]]:
    """Hybrid search by loops: both rankings of each query, and the mean of their scores."""
    lists = [
        (found, found[-1][1] if ranking is plain_dense and len(found) == depth else 0.0)
        for ranking in (plain_bm25, plain_dense)
        for query in queries
        if (found := ranking(rows, query)[:depth])
    ]
    sums: defaultdict[Row, float] = defaultdict(float)
    for each, least in lists:
        best = each[0][1]
        for row, score in each:
            sums[row] += max(0, score - least) / (best - least) if best > least else 1
    return _ranked([(row, value / len(lists)) for row, value in sums.items()])


def _ranked(scored: Iterable[tuple[Row, float]]) -> list[tuple[Row, float]]:
    return sorted(((row, round(score, 6)) for row, score in scored), key=lambda each: (-each[1], each[0].number))
