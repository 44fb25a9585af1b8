"""Kvarn's retrieval over a set: pages are cut, embedded and indexed as those of a vector store, and searched."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.retrieval.sets import JudgedSet, Question
from kvarn.config.retrieval import RetrievalConfig
from kvarn.config.schema import KvarnConfig
from kvarn.models import load_model
from kvarn.retrieval.chunking import chunk, embedded_text
from kvarn.retrieval.index.ranking import bm25
from kvarn.retrieval.index.views import StoreView, view_of
from kvarn.retrieval.index.words import query_hashes
from kvarn.retrieval.search import Retriever
from kvarn.retrieval.types import Chunk, Document
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.owner import ANYBODY, Owner, Principal
from kvarn.store.repositories.chunks import read_passages, read_stores
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.text.tokenizer import Tokenizer

SYSTEMS = ("dense", "words", "hybrid", "hybrid + rerank")
STORE, IDENTITY = "vs_judged", "embedder@1"
DEPTH = 50
"""Results that are looked at."""
_AT_ONCE = 500


class Encoder:
    """A model of Kvarn's that embeds or scores, in this process."""

    def __init__(self, path: str) -> None:
        directory = resolve_checkpoint(path)
        self.tokenizer = Tokenizer.load(directory)
        self._model: Any = load_model(directory, dtype="float32")
        self._longest = self._model.spec.max_context_length

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, dimensions] float16, each of length 1."""
        return self._run([self.tokenizer.encode(text, add_special_tokens=True) for text in texts]).astype(np.float16)

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Scores from 0 to 1."""
        room = self._longest - 4 - len(self.tokenizer.encode(query, add_special_tokens=False))
        logits = self._run([self.tokenizer.encode_pair(query, text, room) for text in texts])[:, 0]
        return [float(each) for each in 1 / (1 + np.exp(-logits))]

    def _run(self, rows: Sequence[list[int]]) -> np.ndarray:
        cut = [row if len(row) <= self._longest else [*row[: self._longest - 1], row[-1]] for row in rows]
        starts = torch.tensor([0, *map(len, cut)]).cumsum(0).to(torch.int32)
        found: np.ndarray = self._model.encode(torch.tensor([token for row in cut for token in row]), starts).numpy()
        return found


class RememberedVectors(Encoder):
    """An embedding model whose vectors are kept in a file: another run of the benchmark need not compute them."""

    def __init__(self, path: str, file: Path) -> None:
        super().__init__(path)
        self._file = file
        self._known: dict[str, np.ndarray] = {}
        if file.exists():
            with np.load(file) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        new = [place for place, key in enumerate(keys) if key not in self._known]
        for begin in range(0, len(new), 64):
            places = new[begin : begin + 64]
            vectors = super().embed([texts[place] for place in places])
            self._known |= {keys[place]: vector for place, vector in zip(places, vectors, strict=True)}
        return np.stack([self._known[key] for key in keys])

    def save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(self._file, keys=np.array(list(self._known)), vectors=np.stack(list(self._known.values())))


class Embedders:
    """Stands in for the embedder that is served."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    async def embed_queries(self, principal: Principal, identity: str, queries: Sequence[str]) -> np.ndarray:
        return self._encoder.embed(queries).astype(np.float32)

    def forget(self, owner: Owner) -> None:
        return


class Reranker:
    """Stands in for the reranker that is served: `ranker` names it, or is `none`."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def choose(self, principal: Principal, ranker: str) -> str | None:
        return None if ranker == "none" else ranker

    async def score(self, principal: Principal, name: str, query: str, texts: Sequence[str]) -> list[float]:
        return self._encoder.score(query, texts)


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk that was found."""

    page: str
    start: int
    end: int


@dataclass(slots=True)
class System:
    """A set in a vector store."""

    retriever: Retriever
    embedder: Encoder
    view: StoreView
    names: Mapping[str, str]
    """Pages by their files' ids."""
    places: Mapping[int, Found]

    async def search(self, kind: str, query: str) -> list[Found]:
        """The first `DEPTH` results, by one of `SYSTEMS`."""
        if kind.startswith("hybrid"):
            ranker = "none" if kind == "hybrid" else "kvarn-demo-rerank"
            result = await self.retriever.search(ANYBODY, [STORE], [query], max_results=DEPTH, ranker=ranker)
            return [Found(self.names[hit.file_id], hit.chunk.start, hit.chunk.end) for hit in result.hits]
        if kind == "words":
            ranking = bm25(self.view.views, query_hashes(query), DEPTH)
        else:
            vectors = self.embedder.embed([query]).astype(np.float32)
            (ranking,) = await self.retriever._vectors.nearest([self.view], vectors, DEPTH)
        return [self.places[chunk_id] for chunk_id, _ in ranking]


async def build(
    judged: JudgedSet, folder: Path, embedder: Encoder, reranker: Encoder | None, tokens: int, overlap: int
) -> System:
    """Ingest a set into a new database in `folder`."""
    config = KvarnConfig.model_validate({"data_dir": str(folder)})
    store = Store.open(config)
    await migrate.upgrade(store)
    await ensure_default_organization(store)
    fakes: Any = (Embedders(embedder), Reranker(reranker or embedder))
    retriever = Retriever(store, RetrievalConfig(), folder / "index", *fakes)
    names: dict[str, str] = {}
    for number, (name, page) in enumerate(judged.pages.items()):
        file_id = f"file-{number:06d}"
        chunks = chunk(Document(page.text, page.blocks, "benchmark"), _count(embedder), tokens, overlap)
        if chunks:
            names[file_id] = name
            await _put(retriever, file_id, name, chunks, embedder)
    return await _opened(store, retriever, embedder, names)


def _count(embedder: Encoder) -> Any:
    return lambda text: len(embedder.tokenizer.encode(text, add_special_tokens=False))


async def _put(retriever: Retriever, file_id: str, name: str, chunks: Sequence[Chunk], embedder: Encoder) -> None:
    owner = ANYBODY.owner
    await retriever.put_file(owner, STORE, file_id, filename=name, attributes={})
    vectors: Any = embedder.embed([embedded_text(each) for each in chunks])
    await retriever.replace_file(owner, STORE, file_id, chunks, vectors, embedder=IDENTITY, version="1")


async def _opened(store: Store, retriever: Retriever, embedder: Encoder, names: Mapping[str, str]) -> System:
    (state,) = await read_stores(store, ANYBODY.owner, [STORE])
    snapshot = await retriever._snapshots.get(state)
    assert snapshot is not None
    view = view_of(snapshot, None)
    ids = [int(each) for part in view.views for each in part.segment.chunk_ids]
    places: dict[int, Found] = {}
    for begin in range(0, len(ids), _AT_ONCE):
        passages = await read_passages(store, ANYBODY.owner, ids[begin : begin + _AT_ONCE])
        places |= {key: Found(names[each.file_id], each.start, each.end) for key, each in passages.items()}
    return System(retriever, embedder, view, names, places)


def gains_of(
    question: Question, found: Sequence[Found], places: Sequence[Found], *, by_page: bool
) -> tuple[list[str], dict[str, float]]:
    """A ranking and the judgements of its items, as `measures` take them. A chunk answers where it has at least half of
    the characters that do; of sets that are judged by page, the pages are ranked by their first chunk."""
    if by_page:
        return list(dict.fromkeys(each.page for each in found)), {page: 1.0 for page, _, _ in question.spans}
    answering = {each: 1.0 for each in places if any(_holds(each, span) for span in question.spans)}
    return [_name(each) for each in found], {_name(each): gain for each, gain in answering.items()}


def _holds(place: Found, span: tuple[str, int, int]) -> bool:
    page, start, end = span
    return place.page == page and 2 * (min(place.end, end) - max(place.start, start)) >= end - start


def _name(place: Found) -> str:
    return f"{place.page}:{place.start}"
