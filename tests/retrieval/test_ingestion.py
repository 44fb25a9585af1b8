"""Ingestion: each file once, whatever happens to the gateway that works on it."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from ingestion_world import IngestionWorld, die
from kept_vector_stores import attachment, keep_file
from kvarn.store.models import ChunkFile, ChunkStore, ChunkVector, StoredChunk, VectorStore
from kvarn.store.repositories.files import delete_file as delete_uploaded
from kvarn.store.repositories.stored_bytes import ROW_BYTES
from kvarn.store.repositories.vector_stores import files, ingestion, stores
from kvarn.store.repositories.vector_stores.deletion import drop_store

PAUSE_S = 60


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FullFile(io.BytesIO):
    """A file on a disk without room."""

    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def clock(store: Any) -> Clock:
    store.now = Clock(store.now())
    return store.now


@pytest.fixture
def ingesting(world: Any, clock: Clock, tmp_path: Path) -> Iterator[IngestionWorld]:
    made = IngestionWorld(world, tmp_path)
    yield made
    made.pool.shutdown()


@pytest.mark.parametrize("stage", ["parse", "embed", "finish"])
async def test_a_file_whose_gateway_is_killed_is_ingested_once_by_another(ingesting, alice, clock, stage):
    store_id = await ingesting.fill(alice.owner, "One sentence of it.")
    ingesting.at[stage].closed = True
    dying = ingesting.worker()
    await dying.poll()
    await ingesting.at[stage].reached.wait()
    await die(dying)
    await ingesting.work()
    assert [row.status for row in await ingesting.rows(store_id)] == ["in_progress"]  # until the lease is over
    clock.now += 31
    ingesting.at[stage].open()
    await ingesting.work()
    (row,) = await ingesting.rows(store_id)
    assert (row.status, row.progress, row.embedder, row.leased_by) == ("completed", 1.0, "e@1", None)
    assert await ingesting.texts(alice.owner, store_id) == ["One sentence of it."]
    async with ingesting.retrieval.store.reading() as session:
        assert len(list(await session.scalars(select(StoredChunk)))) == 1
        assert len(list(await session.scalars(select(ChunkVector)))) == 1
        counted = await session.scalar(select(VectorStore.counted_bytes))
    assert counted == row.usage_bytes + 2 * ROW_BYTES + len(
        b'{"name":"docs","description":"","extra":{},"embedding_model":null}'
    )
    assert not list((ingesting.folder / "ingestion").iterdir())


@pytest.mark.parametrize("change", ["deleted", "cancelled"])
async def test_what_is_taken_away_meanwhile_leaves_nothing(ingesting, alice, change):
    store, owner = ingesting.retrieval.store, alice.owner
    store_id = await ingesting.fill(owner)
    file = await keep_file(store, owner, b"Some text.")
    batch = await files.add_batch(store, owner, store_id, [attachment(file)])
    ingesting.at["embed"].closed = True
    worker = ingesting.worker()
    await worker.poll()
    await ingesting.at["embed"].reached.wait()
    if change == "deleted":
        await files.delete_file(store, owner, store_id, file.id)
    else:
        await files.cancel_batch(store, owner, store_id, batch.row.id)
    ingesting.at["embed"].open()
    await worker.idle()
    assert [row.status for row in await ingesting.rows(store_id)] == ([] if change == "deleted" else ["cancelled"])
    async with store.reading() as session:
        assert not list(await session.scalars(select(StoredChunk)))


@pytest.mark.parametrize("way", ["the file", "of the store", "expired", "the store"])
async def test_nothing_is_left_of_what_is_deleted(ingesting, alice, clock, way):
    store, owner = ingesting.retrieval.store, alice.owner
    store_id = await ingesting.fill(owner, "Some text.")
    (row,) = await ingesting.rows(store_id)
    await files.add_file(
        store, owner, store_id, attachment(await keep_file(store, owner, b"More.", int(clock.now) + 9))
    )
    await ingesting.work()
    retriever = ingesting.retrieval.retriever
    assert len((await retriever.search(alice, [store_id], ["text more"])).hits) == 2
    if way == "the file":
        await delete_uploaded(store, owner, row.file_id)
    elif way == "of the store":
        await files.delete_file(store, owner, store_id, row.file_id)
    elif way == "expired":
        clock.now += 9
        await ingesting.work()
    else:
        await drop_store(store, await stores.hide_store(store, owner, store_id))
    left = 0 if way == "the store" else 1
    async with store.reading() as session:
        for table in (StoredChunk.id, ChunkVector.chunk_id, ChunkFile.file_id):
            assert len(list(await session.scalars(select(table)))) == left
    assert len((await retriever.search(alice, [store_id], ["text more"])).hits) == left


async def test_a_gateway_that_stops_hands_its_files_over_at_once(ingesting, alice):
    store_id = await ingesting.fill(alice.owner, "Some text.")
    ingesting.at["embed"].closed = True
    stopping = ingesting.worker()
    await stopping.poll()
    await ingesting.at["embed"].reached.wait()
    await stopping.stop()
    ingesting.at["embed"].open()
    await ingesting.work()
    assert [row.status for row in await ingesting.rows(store_id)] == ["completed"]


async def test_a_file_that_cannot_be_read_fails_alone(ingesting, alice):
    store_id = await ingesting.fill(alice.owner, "broken", "Some text.")
    await ingesting.work()
    rows = {row.status: row for row in await ingesting.rows(store_id)}
    assert (rows["failed"].error_code, rows["failed"].error_message) == ("invalid_file", "It is broken.")
    assert rows["completed"].version


async def test_a_file_that_gateways_fail_at_is_given_up(ingesting, alice, clock):
    store_id = await ingesting.fill(alice.owner, "poison")
    for _ in range(6):
        await ingesting.work()
        clock.now += 31
    (row,) = await ingesting.rows(store_id)
    assert (row.status, row.error_code, ingesting.parsed) == ("failed", "server_error", 4)


@pytest.mark.parametrize("where", ["the copy", "the database"])
async def test_a_file_waits_while_the_disk_is_full_and_is_not_given_up(ingesting, alice, clock, monkeypatch, where):
    store_id = await ingesting.fill(alice.owner, "Some text.")
    with monkeypatch.context() as full:
        if where == "the copy":
            full.setattr("kvarn.retrieval.ingestion.tempfile.TemporaryFile", lambda **_options: FullFile())
        else:
            ingesting.no_room = True
        for tries in range(6):
            await ingesting.work()
            (row,) = await ingesting.rows(store_id)
            assert row.status == "in_progress" and ingesting.parsed == (0 if where == "the copy" else tries + 1)
            clock.now += PAUSE_S + 1
    ingesting.no_room = False
    await ingesting.work()
    assert await ingesting.texts(alice.owner, store_id) == ["Some text."]


async def test_without_an_embedding_model_words_are_found_and_vectors_come_when_there_is_one(ingesting, alice):
    ingesting.identity = None
    store_id = await ingesting.fill(alice.owner, "Some text.")
    await ingesting.work()
    (row,) = await ingesting.rows(store_id)
    assert (row.status, row.embedder, row.stale) == ("completed", "", False)
    ingesting.identity = "e@1"
    await ingesting.work()
    (row,) = await ingesting.rows(store_id)
    assert (row.embedder, ingesting.parsed) == ("e@1", 1)  # it is not read again


async def test_while_the_embedding_model_is_away_words_are_found_and_vectors_come_later(ingesting, alice, clock):
    ingesting.away = "it has failed"
    store_id = await ingesting.fill(alice.owner, "Some text.")
    await ingesting.work()
    (row,) = await ingesting.rows(store_id)
    assert (row.status, row.embedder, row.stale) == ("completed", "", True)
    found = await ingesting.retrieval.retriever.search(alice, [store_id], ["text"])
    assert found.hits and found.degraded
    ingesting.away = ""
    clock.now += PAUSE_S
    await ingesting.work()
    (row,) = await ingesting.rows(store_id)
    assert (row.embedder, row.stale) == ("e@1", False)


async def test_another_version_of_the_model_takes_over_once_all_files_have_its_vectors(ingesting, alice, clock):
    async def searched_by() -> str:
        async with ingesting.retrieval.store.reading() as session:
            return str(await session.scalar(select(ChunkStore.embedder)))

    store_id = await ingesting.fill(alice.owner, "First text.", "Second text.")
    await ingesting.work()
    assert await searched_by() == "e@1"
    ingesting.identity = "e@2"
    ingesting.at["embed"].closed = True
    worker = ingesting.worker()
    await worker.poll()
    await ingesting.at["embed"].reached.wait()
    assert [row.status for row in await ingesting.rows(store_id)] == ["completed"] * 2
    assert await searched_by() == "e@1"
    ingesting.at["embed"].open()
    await worker.idle()
    assert await searched_by() == "e@2" and ingesting.parsed == 2
    async with ingesting.retrieval.store.reading() as session:
        assert set(await session.scalars(select(ChunkVector.embedder))) == {"e@2"}


async def test_vectors_that_cannot_be_made_leave_the_file_as_it_was(ingesting, alice, clock):
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unforeseen")

    store_id = await ingesting.fill(alice.owner, "Some text.")
    await ingesting.work()
    ingesting.identity, replace = "e@2", ingesting.replace_file
    ingesting.replace_file = fail
    for _ in range(6):
        await ingesting.work()
        clock.now += 31
    (row,) = await ingesting.rows(store_id)
    assert (row.status, row.embedder, row.stale, row.error_code) == ("completed", "e@1", True, None)
    ingesting.replace_file = replace
    clock.now += 3600
    await ingesting.work()
    (row,) = await ingesting.rows(store_id)
    assert (row.embedder, row.stale) == ("e@2", False)


async def test_one_organisation_does_not_have_all_places(ingesting, alice, bob):
    await ingesting.fill(alice.owner, *(f"Text {number}." for number in range(6)))
    ingesting.at["parse"].closed = True
    worker = ingesting.worker()
    await worker.poll()
    assert worker.taken_by(alice.organization_id) == 3
    await ingesting.fill(bob.owner, "Text.")
    await worker.poll()
    assert worker.taken_by(bob.organization_id) == 1
    ingesting.at["parse"].open()
    while worker.running:
        await worker.idle()
        await worker.poll()
    assert await ingestion.claim_file(ingesting.retrieval.store, "gw", 30) is None
