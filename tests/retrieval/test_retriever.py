"""Chunks of stores: replaced whole or not at all, given vectors of another embedder, and searched by every process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from kvarn.config.retrieval import RetrievalConfig
from kvarn.retrieval.index.segment import read_segment
from kvarn.retrieval.reranking import RerankerAwayError
from kvarn.retrieval.types import Chunk
from kvarn.store.errors import NotFoundError
from kvarn.store.models import ChunkStore, ChunkVector, StoredChunk
from kvarn.store.owner import Principal
from kvarn.store.repositories.chunks import delete_lost_chunks
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import get_organization
from retrieval_world import IDENTITY, RetrievalWorld, chunks_of, vectors_of

STORE = "vs-1"


async def texts(world: RetrievalWorld, principal: Principal, query: str, **arguments: Any) -> list[str]:
    found = await world.retriever.search(principal, [STORE], [query], **arguments)
    return [hit.chunk.text for hit in found.hits]


async def count(world: RetrievalWorld, table: Any) -> int:
    async with world.store.reading() as session:
        return int(await session.scalar(select(func.count()).select_from(table)) or 0)


async def test_a_large_file_is_written_in_steps_and_seen_at_once(world: RetrievalWorld, alice: Principal) -> None:
    await world.add(alice.owner, STORE, "file-a", [f"old {i}" for i in range(1200)])
    assert "old 7" in await texts(world, alice, "old 7")
    new = chunks_of([f"new {i}" for i in range(1100)])
    writing = asyncio.create_task(
        world.retriever.replace_file(alice.owner, STORE, "file-a", new, vectors_of(new), embedder=IDENTITY, version="2")
    )
    while not writing.done():
        found = await texts(world, alice, "new old", max_results=50)
        assert len({text.split()[0] for text in found}) == 1
    await writing
    assert "new 7" in await texts(world, alice, "7")
    assert await count(world, StoredChunk) == await count(world, ChunkVector) == 1100


async def test_the_same_version_again_changes_nothing(world: RetrievalWorld, alice: Principal) -> None:
    await world.add(alice.owner, STORE, "file-a", ["red"])
    async with world.store.reading() as session:
        before = list(await session.scalars(select(StoredChunk.id)))
    await world.add(alice.owner, STORE, "file-a", ["not written"])
    async with world.store.reading() as session:
        assert list(await session.scalars(select(StoredChunk.id))) == before
    assert [each.text for each in await world.retriever.read_file(alice.owner, STORE, "file-a")] == ["red"]


async def test_a_file_that_was_removed_does_not_come_back(world: RetrievalWorld, alice: Principal) -> None:
    await world.add(alice.owner, STORE, "file-a", ["red"])
    await world.retriever.remove_file(alice.owner, STORE, "file-a")
    late = chunks_of(["red"])
    with pytest.raises(NotFoundError, match="file-a"):
        await world.retriever.replace_file(alice.owner, STORE, "file-a", late, None, embedder="", version="2")
    assert await texts(world, alice, "red") == []
    assert await count(world, StoredChunk) == 0


async def test_a_stranger_changes_nothing(world: RetrievalWorld, alice: Principal, bob: Principal) -> None:
    await world.add(alice.owner, STORE, "file-a", ["red"])
    await world.retriever.remove_file(bob.owner, STORE, "file-a")
    await world.retriever.remove_store(bob.owner, STORE)
    with pytest.raises(NotFoundError):
        await world.retriever.put_file(bob.owner, STORE, "file-b", filename="b", attributes={})
    with pytest.raises(NotFoundError):
        await world.retriever.replace_file(bob.owner, STORE, "file-a", [], None, embedder="", version="2")
    assert await world.retriever.read_file(bob.owner, STORE, "file-a") == []
    assert await texts(world, alice, "red") == ["red"]


async def test_another_embedder_takes_over_once_every_file_has_its_vectors(
    world: RetrievalWorld, alice: Principal
) -> None:
    for name in ("file-a", "file-b"):
        await world.add(alice.owner, STORE, name, [name])
    assert (await world.retriever.search(alice, [STORE], ["x"])).degraded == ()
    await world.add(alice.owner, STORE, "file-a", ["file-a"], embedder="fake@2")
    assert (await world.retriever.search(alice, [STORE], ["x"])).degraded == ()  # by the old one
    assert await count(world, ChunkVector) == 3
    await world.add(alice.owner, STORE, "file-b", ["file-b"], embedder="fake@2")
    degraded = (await world.retriever.search(alice, [STORE], ["file"])).degraded
    assert "they are of fake@2, and fake@1 is served" in degraded[0]
    world.embedders.identity = "fake@2"
    found = await world.retriever.search(alice, [STORE], ["x"])
    assert found.degraded == () and len(found.hits) == 2
    assert await count(world, ChunkVector) == 2
    async with world.store.reading() as session:
        assert await session.scalar(select(ChunkStore.embedder)) == "fake@2"


async def test_files_without_vectors_are_searched_by_words_and_told(world: RetrievalWorld, alice: Principal) -> None:
    await world.add(alice.owner, STORE, "file-a", ["red"], embedder="")
    found = await world.retriever.search(alice, [STORE], ["red"])
    assert [hit.score for hit in found.hits] == [1.0]
    assert found.degraded == (f"No vectors of {STORE} are there: only words were compared.",)
    await world.add(alice.owner, STORE, "file-b", ["green"])
    (told,) = (await world.retriever.search(alice, [STORE], ["red"])).degraded
    assert told == f"1 files of {STORE} have no vectors yet: only their words were compared."
    await world.add(alice.owner, STORE, "file-a", ["red"])  # they come later
    assert (await world.retriever.search(alice, [STORE], ["red"])).degraded == ()


async def test_a_reranker_orders_results_and_a_dead_one_leaves_them(world: RetrievalWorld, alice: Principal) -> None:
    world.reranker.letter = "z"
    await world.add(alice.owner, STORE, "file-a", ["red", "red zzzzzzzz"])
    assert await texts(world, alice, "red") == ["red zzzzzzzz", "red"]
    assert await texts(world, alice, "red", score_threshold=0.6) == ["red zzzzzzzz"]
    plain = await texts(world, alice, "red", ranker="none")
    for hit in (await world.retriever.search(alice, [STORE], ["red", "zz"])).hits:
        scores = hit.scores
        assert scores.words and scores.vectors is not None
        assert hit.score == pytest.approx(((scores.fusion or 0) + (scores.reranker or 0)) / 2, abs=1e-6)
    world.reranker.away = RerankerAwayError("the reranker 'fake' is away")
    found = await world.retriever.search(alice, [STORE], ["red"])
    assert [hit.chunk.text for hit in found.hits] == plain
    assert found.degraded == ("Results were not reranked, and are as they were fused: the reranker 'fake' is away",)


async def test_headings_above_a_passage_count_as_its_words(world: RetrievalWorld, alice: Principal) -> None:
    await world.retriever.put_file(alice.owner, STORE, "file-a", filename="a", attributes={})
    chunks = [Chunk(0, 0, 3, "red", 1, "Colours > Warm"), Chunk(1, 4, 8, "blue", 1)]
    await world.retriever.replace_file(alice.owner, STORE, "file-a", chunks, None, embedder="", version="1")
    assert await texts(world, alice, "warm") == ["red"]
    world.reranker.letter = "W"
    (found,) = (await world.retriever.search(alice, [STORE], ["warm"])).hits
    assert found.score > 0 and found.chunk == chunks[0]


async def test_results_are_not_all_of_one_file_where_that_is_wanted(world: RetrievalWorld, alice: Principal) -> None:
    await world.add(alice.owner, STORE, "file-a", ["red red", "red red red", "red"])
    await world.add(alice.owner, STORE, "file-b", ["red blue green black white"])
    several = world.another(RetrievalConfig(max_chunks_per_file=1))
    found = await several.search(alice, [STORE], ["red"], max_results=2)
    assert {hit.file_id for hit in found.hits} == {"file-a", "file-b"}


async def test_large_indexes_lie_in_files_which_are_made_again_where_they_are_damaged(
    world: RetrievalWorld, alice: Principal
) -> None:
    await world.add(alice.owner, STORE, "file-a", [f"red {i}" for i in range(1001)])
    wanted = await texts(world, alice, "red 1000")
    (path,) = _files(world.folder)
    for damage in (b"", b"kvarnix1", path.read_bytes()[:-100]):
        path.unlink()  # who has it mapped keeps it
        path.write_bytes(damage)
        assert [hit.chunk.text for hit in (await world.another().search(alice, [STORE], ["red 1000"])).hits] == wanted
        assert [each.stat().st_size > 1000 for each in _files(world.folder)] == [True]
    await world.add(alice.owner, STORE, "file-b", [f"blue {i}" for i in range(1001)])
    await texts(world, alice, "blue")
    assert len(_files(world.folder)) == 1  # merged
    await world.retriever.remove_store(alice.owner, STORE)
    assert _files(world.folder) == []
    assert alice.owner in world.embedders.forgotten


async def test_indexes_that_have_no_room_are_read_again(world: RetrievalWorld, alice: Principal) -> None:
    small = world.another()
    small._snapshots._max_bytes = 1
    for store in ("vs-1", "vs-2"):
        await world.add(alice.owner, store, "file-a", [f"red {store}"])
    for store in ("vs-1", "vs-2", "vs-1"):
        found = await small.search(alice, [store], ["red"])
        assert [hit.chunk.text for hit in found.hits] == [f"red {store}"]
        assert list(small._snapshots._held) == [store]


async def test_chunks_and_indexes_of_what_was_deleted_are_swept(
    world: RetrievalWorld, alice: Principal, bob: Principal
) -> None:
    await world.add(alice.owner, STORE, "file-a", [f"red {i}" for i in range(1001)])
    await world.add(alice.owner, STORE, "file-b", ["blue"])
    await world.add(bob.owner, "vs-2", "file-a", ["red"])
    for principal, store_id in ((alice, STORE), (bob, "vs-2")):
        await world.retriever.search(principal, [store_id], ["red"])
    old, new = world.folder / "vs-2" / ".old.tmp", world.folder / "vs-2" / ".new.tmp"
    old.parent.mkdir()
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    await world.retriever.remove_file(alice.owner, STORE, "file-b")
    await world.retriever.sweep()
    (path,) = _files(world.folder)
    assert [each.file_id for each in read_segment(path).files] == ["file-a"]
    assert not old.exists() and new.exists()
    async with audited_change(world.store, Actor("server")) as change:
        await change.session.delete(await get_organization(change.session, alice.owner.organization_id))
    await delete_lost_chunks(world.store)
    await world.retriever.sweep()
    assert await count(world, StoredChunk) == await count(world, ChunkVector) == 1
    assert [path.name for path in world.folder.iterdir()] == list(world.retriever._snapshots._held) == ["vs-2"]


async def test_queries_without_words_and_stores_without_chunks_find_nothing(
    world: RetrievalWorld, alice: Principal
) -> None:
    assert (await world.retriever.search(alice, ["vs-none"], ["red"])).hits == ()
    await world.add(alice.owner, STORE, "file-a", ["red"])
    assert (await world.retriever.search(alice, [STORE], [" "])).hits == ()
    await world.add(alice.owner, STORE, "file-a", [], version="2")
    assert (await world.retriever.search(alice, [STORE], ["red"])).hits == ()


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.segment"))
