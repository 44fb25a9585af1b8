"""Search in vector stores: seconds by the number of chunks, memory, time to build, recall.

    python -m benchmarks.vector_search                      10,000 and 100,000 chunks of 384 numbers
    python -m benchmarks.vector_search --chunks 20000 --searches 50 --index usearch

Texts are made: 120 words a chunk, as frequent as words of a language are (Zipf, 50,000 of them); vectors lie around
2,000 topics. A query has eight words of a chunk, and a vector near that chunk's. Hybrid searches are whole ones
(`Retriever.search`: the database's revision, rankings, fusion, passages) without the models that embed and rerank.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvarn.config.retrieval import RetrievalConfig
from kvarn.config.schema import KvarnConfig
from kvarn.retrieval.index.products import products
from kvarn.retrieval.index.ranking import bm25
from kvarn.retrieval.index.usearch import UsearchSearch
from kvarn.retrieval.index.views import view_of
from kvarn.retrieval.index.words import query_hashes
from kvarn.retrieval.search import Retriever
from kvarn.retrieval.types import Chunk
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.owner import ANYBODY, Principal
from kvarn.store.repositories.chunks import read_stores
from kvarn.store.repositories.tenants.organizations import ensure_default_organization

VOCABULARY, WORDS_A_CHUNK, CHUNKS_A_FILE, TOPICS = 50_000, 120, 250, 2000
IDENTITY, STORE = "made@1", "vs_made"
OWNER = ANYBODY.owner


@dataclass
class MadeChunks:
    """Chunks of a made language."""

    count: int
    size: int
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        frequencies = 1 / np.arange(1, VOCABULARY + 1)
        self.words = self.chance.choice(
            VOCABULARY, size=(self.count, WORDS_A_CHUNK), p=frequencies / frequencies.sum()
        ).astype(np.int32)
        topics = unit(self.chance.standard_normal((TOPICS, self.size), dtype=np.float32))
        of = self.chance.integers(0, TOPICS, self.count)
        noise = self.chance.standard_normal((self.count, self.size), dtype=np.float32) / np.sqrt(self.size)
        self.vectors = unit(topics[of] + noise).astype(np.float16)

    def text(self, number: int) -> str:
        return " ".join(f"w{word}" for word in self.words[number])

    def query(self) -> tuple[str, Any]:
        number = int(self.chance.integers(self.count))
        words = self.chance.choice(self.words[number], 8, replace=False)
        noise = self.chance.standard_normal(self.size, dtype=np.float32) * 0.5 / np.sqrt(self.size)
        return " ".join(f"w{word}" for word in words), unit(self.vectors[number].astype(np.float32) + noise)


def unit(vectors: Any) -> Any:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


class MadeEmbedders:
    """Stands in for the embedding model: vectors of queries are known."""

    def __init__(self) -> None:
        self.vectors: dict[str, Any] = {}

    async def embed_queries(self, principal: Principal, identity: str, queries: Sequence[str]) -> Any:
        return np.stack([self.vectors[query] for query in queries])

    def forget(self, owner: object) -> None:
        return


class NoReranker:
    def choose(self, principal: Principal, ranker: str) -> None:
        return None


@dataclass
class Figures:
    chunks: int
    ingested_mib_s: float
    built_s: float
    mapped_s: float
    memory_mib: float
    seconds: dict[str, list[float]]
    recall: float
    cpu_s: float
    """Of the process, for a hybrid search."""


async def measure(folder: Path, count: int, size: int, searches: int, index: str) -> Figures:
    made, embedders = MadeChunks(count, size), MadeEmbedders()
    config = KvarnConfig.model_validate({"data_dir": str(folder)})
    store = Store.open(config)
    await migrate.upgrade(store)
    await ensure_default_organization(store)
    settings = RetrievalConfig.model_validate({"index": index, "diversity": 0, "memory_mib": 2048})

    def retriever() -> Retriever:
        fakes: Any = (embedders, NoReranker())
        return Retriever(store, settings, folder / "index", *fakes)

    first = retriever()
    took = await timed(lambda: ingest(first, made))
    queries = [made.query() for _ in range(searches)]
    embedders.vectors = dict(queries)
    before = resident_mib()

    async def begin(searcher: Retriever) -> None:
        await searcher.search(ANYBODY, [STORE], [queries[0][0]])

    built_s = await timed(lambda: begin(first))
    first.close()
    second = retriever()
    mapped_s = await timed(lambda: begin(second))
    memory = resident_mib() - before
    if isinstance(second._vectors, UsearchSearch):
        second._vectors._builder.submit(int).result()  # the graph, which is made in the background
    seconds: dict[str, list[float]] = {"words": [], "vectors": [], "hybrid": []}
    recall = cpu_s = 0.0
    nearest: list[set[int]] = []
    (state,) = await read_stores(store, OWNER, [STORE])
    snapshot = await second._snapshots.get(state)
    assert snapshot is not None
    view = view_of(snapshot, None)
    for text, vector in queries:
        start = time.perf_counter()
        bm25(view.views, query_hashes(text), settings.candidates)
        seconds["words"].append(time.perf_counter() - start)
        start = time.perf_counter()
        (ranking,) = await second._vectors.nearest([view], vector[None], 10)
        seconds["vectors"].append(time.perf_counter() - start)
        start = time.perf_counter()
        cpu_s -= time.process_time()
        await second.search(ANYBODY, [STORE], [text])
        cpu_s += time.process_time()
        seconds["hybrid"].append(time.perf_counter() - start)
        nearest.append({chunk_id for chunk_id, _ in ranking})
    judged = min(50, searches)
    for (_, vector), found in zip(queries[:judged], nearest, strict=False):
        best = np.argsort(-products(made.vectors, vector))[:10] + 1  # ids count from 1
        recall += len(found & set(best.tolist())) / 10 / judged
    second.close()
    await store.close()
    text_mib = count * len(made.text(0)) / (1 << 20)
    return Figures(count, text_mib / took, built_s, mapped_s, memory, seconds, recall, cpu_s / searches)


async def ingest(retriever: Retriever, made: MadeChunks) -> None:
    for first in range(0, made.count, CHUNKS_A_FILE):
        numbers = range(first, min(made.count, first + CHUNKS_A_FILE))
        chunks = [Chunk(n - first, 0, 0, made.text(n), WORDS_A_CHUNK) for n in numbers]
        name = f"file-{first}"
        await retriever.put_file(OWNER, STORE, name, filename=name, attributes={})
        vectors = made.vectors[first : first + len(chunks)]
        await retriever.replace_file(OWNER, STORE, name, chunks, vectors, embedder=IDENTITY, version="1")


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def show(figures: Figures, index: str) -> None:
    print(f"{figures.chunks:,} chunks, {index}: recall@10 {figures.recall:.3f}")
    print(f"  written {figures.ingested_mib_s:.1f} MiB of text a second (words and rows; no parsing, no embedding)")
    print(f"  index built in {figures.built_s:.2f} s, from its files in {figures.mapped_s:.2f} s")
    print(f"  {figures.memory_mib:.0f} MiB resident more, files mapped included")
    for name, seconds in figures.seconds.items():
        p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
        print(f"  {name:<8} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms")
    print(f"  a hybrid search takes {figures.cpu_s * 1e3:.1f} ms of the processor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--index", choices=["exact", "usearch"], default="exact")
    given = parser.parse_args()
    for count in given.chunks:
        with tempfile.TemporaryDirectory() as folder:
            work = measure(Path(folder), count, given.dimensions, given.searches, given.index)
            show(asyncio.run(work), given.index)


if __name__ == "__main__":
    main()
