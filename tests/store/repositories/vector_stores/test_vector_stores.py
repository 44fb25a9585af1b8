"""Vector stores in the database: what belongs to whom, what they count for, and how they go."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, func, select

from kept_vector_stores import attachment, keep_file, keep_store
from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError, StorageFullError
from kvarn.store.models import (
    ChunkFile,
    ChunkStore,
    File,
    Organization,
    VectorStore,
    VectorStoreFile,
    VectorStoreFileBatch,
)
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.files import delete_file as delete_uploaded
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.retention import delete_expired
from kvarn.store.repositories.stored_bytes import ROW_BYTES, sum_stored_bytes
from kvarn.store.repositories.tenants.principals import find_bearer
from kvarn.store.repositories.vector_stores import attachments, files, ingestion, stores
from kvarn.store.repositories.vector_stores.deletion import drop_store
from new_tenants import create_organization

DAY_S = 24 * 3600


@pytest.fixture
async def red(store: Store) -> Principal:
    return await create_organization(store, "red")


async def counts(store: Store) -> dict[str, int]:
    async with store.reading() as session:
        tables = (VectorStore, VectorStoreFile, VectorStoreFileBatch, ChunkStore, ChunkFile)
        return {
            table.__tablename__: int(await session.scalar(select(func.count()).select_from(table)) or 0)
            for table in tables
        }


async def ingest(store: Store, owner: Owner, usage_bytes: int = 100) -> None:
    """End the ingestion of all that waits."""
    while (file := await ingestion.claim_file(store, "gw", 60)) is not None:
        assert file.owner == owner
        assert await ingestion.finish_file(store, "gw", file.key, version="1", embedder="", usage_bytes=usage_bytes)


async def test_another_project_finds_nothing(store, red):
    blue = await create_organization(store, "blue")
    file = await keep_file(store, red.owner)
    made = await keep_store(store, red.owner, file)
    for ask in (
        stores.read_store(store, blue.owner, made.id),
        stores.hide_store(store, blue.owner, made.id),
        stores.update_store(store, blue.owner, made.id, {"name": "mine"}),
        files.list_files(store, blue.owner, made.id, Cursor(), None),
        files.delete_file(store, blue.owner, made.id, file.id),
        files.update_file(store, blue.owner, made.id, file.id, {"attributes": {}}),
        files.add_file(store, blue.owner, made.id, attachment(file)),
    ):
        with pytest.raises(NotFoundError):
            await ask
    own = await keep_store(store, blue.owner)
    with pytest.raises(NotFoundError, match="no file"):
        await files.add_file(store, blue.owner, own.id, attachment(file))


async def test_files_are_added_all_or_none_and_count_by_their_status(store, red):
    kept = [await keep_file(store, red.owner) for _ in range(3)]
    made = await keep_store(store, red.owner)
    gone = await keep_file(store, red.owner)
    await delete_uploaded(store, red.owner, gone.id)
    with pytest.raises(NotFoundError):
        await files.add_batch(store, red.owner, made.id, [attachment(kept[0]), attachment(gone)])
    assert await counts(store) == {
        "vector_stores": 1,
        "vector_store_files": 0,
        "vector_store_file_batches": 0,
        "chunk_stores": 0,
        "chunk_files": 0,
    }
    batch = await files.add_batch(store, red.owner, made.id, [attachment(each) for each in kept[:2]])
    await ingest(store, red.owner)
    await files.add_file(store, red.owner, made.id, attachment(kept[2]))
    sums = (await stores.read_store(store, red.owner, made.id)).sums
    assert sums.by_status == {"completed": 2, "in_progress": 1} and sums.usage_bytes == 200
    batch = await files.read_batch(store, red.owner, made.id, batch.row.id)
    assert batch.sums.by_status == {"completed": 2}


async def test_a_store_has_a_bound_of_files(store, red, monkeypatch):
    monkeypatch.setattr(attachments, "MAX_FILES", 1)
    first, second = [await keep_file(store, red.owner) for _ in range(2)]
    made = await keep_store(store, red.owner, first)
    with pytest.raises(ConflictError, match="at most 1 files"):
        await files.add_file(store, red.owner, made.id, attachment(second))
    await files.add_file(store, red.owner, made.id, attachment(first))  # it is there already


async def test_what_files_take_counts_for_their_organisation_and_has_its_bound(store, red):
    async def other_bytes() -> int:
        await sum_stored_bytes(store)
        async with store.reading() as session:
            query = select(Organization.other_bytes).where(Organization.id == red.organization_id)
            return int(await session.scalar(query) or 0)

    file = await keep_file(store, red.owner)
    made = await keep_store(store, red.owner, file)
    empty = await other_bytes()
    await ingest(store, red.owner, 5000)
    assert await other_bytes() == empty + 5000
    await files.delete_file(store, red.owner, made.id, file.id)
    assert await other_bytes() == empty - ROW_BYTES
    store.quota.max_bytes = 6000
    large = await keep_file(store, red.owner, b"x" * 2500)
    with pytest.raises(StorageFullError):
        await files.add_file(store, red.owner, made.id, attachment(large))


async def test_a_file_leaves_its_stores_when_it_is_deleted_or_expires(store, red, clock):
    kept = await keep_file(store, red.owner)
    gone = await keep_file(store, red.owner)
    expiring = await keep_file(store, red.owner, expires_at=int(clock.now) + 100)
    made = [await keep_store(store, red.owner, kept, gone, expiring) for _ in range(2)]
    await delete_uploaded(store, red.owner, gone.id)
    assert (await counts(store))["vector_store_files"] == (await counts(store))["chunk_files"] == 4
    clock.now += 100
    await ingestion.remove_expired(store)
    for each in made:
        page = await files.list_files(store, red.owner, each.id, Cursor(), None)
        assert [file.file_id for file in page.items] == [kept.id]
    assert (await counts(store))["chunk_files"] == 2


async def test_a_file_that_an_older_gateway_deleted_leaves_its_stores(store, red):
    kept, gone = [await keep_file(store, red.owner) for _ in range(2)]
    await keep_store(store, red.owner, kept, gone)
    async with store.transaction() as session:
        await session.execute(delete(File).where(File.id == gone.id))
    await ingestion.remove_lost(store)
    left = await counts(store)
    assert (left["vector_store_files"], left["chunk_files"]) == (1, 1)


async def test_an_unused_store_expires_and_the_sweep_deletes_it(store, red, clock):
    used = await keep_store(store, red.owner, await keep_file(store, red.owner), days=2)
    unused = await keep_store(store, red.owner, await keep_file(store, red.owner), days=2)
    for_ever = await keep_store(store, red.owner)
    clock.now += DAY_S
    await stores.note_use(store, [used.id, for_ever.id])
    clock.now += DAY_S
    assert (await delete_expired(store, RetentionConfig())).deleted["vector_stores"] == 1
    with pytest.raises(NotFoundError):
        await stores.read_store(store, red.owner, unused.id)
    assert await counts(store) == {
        "vector_stores": 2,
        "vector_store_files": 1,
        "vector_store_file_batches": 0,
        "chunk_stores": 1,
        "chunk_files": 1,
    }


async def test_a_deletion_that_was_interrupted_is_ended_by_the_sweep(store, red):
    file = await keep_file(store, red.owner)
    made = await keep_store(store, red.owner, file)
    await files.add_batch(store, red.owner, made.id, [attachment(file)])
    await stores.hide_store(store, red.owner, made.id)
    assert not (await stores.list_stores(store, red.owner, Cursor())).items
    with pytest.raises(NotFoundError):
        await files.read_file(store, red.owner, made.id, file.id)
    assert await ingestion.claim_file(store, "gw", 60) is None
    await delete_expired(store, RetentionConfig())
    assert set((await counts(store)).values()) == {0}


async def test_everything_goes_with_its_organisation(store, red):
    blue = await create_organization(store, "blue")
    for owner in (red.owner, blue.owner):
        await keep_store(store, owner, await keep_file(store, owner), await keep_file(store, owner))
    deleted = await delete_organization_data(store, red.organization_id)
    assert deleted["vector_stores"] == 1
    left = await counts(store)
    assert (left["vector_stores"], left["vector_store_files"], left["chunk_files"]) == (1, 2, 2)


@pytest.mark.parametrize("way", ["file of a store", "uploaded file", "store", "sweep"])
async def test_what_quoted_a_deleted_document_is_found_in_no_cache_any_more(store, red, clock, way):
    async def salt() -> str:
        principal = await find_bearer(store, red.owner, None)
        assert principal is not None
        return principal.cache_salt

    kept, quoted = [await keep_file(store, red.owner, expires_at=int(clock.now) + 100) for _ in range(2)]
    made = await keep_store(store, red.owner, kept, quoted)
    other = await keep_store(store, red.owner, kept)
    await files.note_quoted(store, red.owner, {made.id: {quoted.id}})
    before = await salt()
    await files.delete_file(store, red.owner, made.id, kept.id)
    row = await stores.hide_store(store, red.owner, other.id)
    await drop_store(store, row)
    assert await salt() == before == red.cache_salt
    if way == "file of a store":
        await files.delete_file(store, red.owner, made.id, quoted.id)
    elif way == "uploaded file":
        await delete_uploaded(store, red.owner, quoted.id)
    elif way == "store":
        await stores.hide_store(store, red.owner, made.id)
    else:
        clock.now += 100
        await delete_expired(store, RetentionConfig())
    assert await salt() == f"{red.cache_salt}.{red.project_id}.1"
