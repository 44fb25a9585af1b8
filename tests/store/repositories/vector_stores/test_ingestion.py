"""Files that wait for their ingestion: who gets which, and whose results count."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from kept_vector_stores import attachment, keep_file, keep_store
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import VectorStoreFile
from kvarn.store.owner import Principal
from kvarn.store.repositories.chunk_replacement import Replacement
from kvarn.store.repositories.vector_stores import files, ingestion
from new_tenants import create_organization


@pytest.fixture
async def red(store: Store) -> Principal:
    return await create_organization(store, "red")


async def row_of(store: Store, file_id: str) -> Any:
    async with store.reading() as session:
        return await session.scalar(select(VectorStoreFile).where(VectorStoreFile.file_id == file_id))


async def finish(store: Store, holder: str, key: Any, embedder: str = "e@1", **more: Any) -> bool:
    return await ingestion.finish_file(store, holder, key, version="1", embedder=embedder, usage_bytes=10, **more)


async def test_a_file_has_one_holder_until_its_lease_is_over(store, red, clock):
    file = await keep_file(store, red.owner)
    await keep_store(store, red.owner, file)
    taken = await ingestion.claim_file(store, "a", 30)
    assert taken.key[1] == file.id and await ingestion.claim_file(store, "b", 30) is None
    clock.now += 20
    assert await ingestion.renew_files(store, "a", [taken.key], 30) == {taken.key}
    clock.now += 31
    again = await ingestion.claim_file(store, "b", 30)
    assert again.key == taken.key and again.row.attempts == 2
    assert await ingestion.renew_files(store, "a", [taken.key], 30) == set()
    assert not await ingestion.note_progress(store, "a", taken.key, 0.5)
    assert not await finish(store, "a", taken.key)
    assert await finish(store, "b", taken.key)
    assert await ingestion.claim_file(store, "b", 30) is None


async def test_one_that_was_stopped_in_order_is_taken_at_once_and_does_not_count(store, red):
    await keep_store(store, red.owner, await keep_file(store, red.owner))
    for _ in range(9):
        taken = await ingestion.claim_file(store, "a", 30)
        assert taken.row.attempts == 1
        await ingestion.release_file(store, "a", taken.key)


async def test_organisations_take_turns(store, red):
    blue = await create_organization(store, "blue")
    await keep_store(store, red.owner, *[await keep_file(store, red.owner) for _ in range(3)])
    await keep_store(store, blue.owner, await keep_file(store, blue.owner))
    first = await ingestion.claim_file(store, "a", 30)
    assert first.owner == red.owner
    second = await ingestion.claim_file(store, "a", 30, {red.organization_id})
    assert second.owner == blue.owner
    both = {red.organization_id, blue.organization_id}
    assert (await ingestion.claim_file(store, "a", 30, both)).owner == red.owner
    assert await ingestion.claim_file(store, "a", 30, both, {red.organization_id}) is None


@pytest.mark.parametrize("change", ["cancel", "delete", "add again"])
async def test_a_result_that_comes_too_late_changes_nothing(store, red, change):
    file = await keep_file(store, red.owner)
    made = await keep_store(store, red.owner)
    batch = await files.add_batch(store, red.owner, made.id, [attachment(file)])
    taken = await ingestion.claim_file(store, "a", 30)
    if change == "cancel":
        await files.cancel_batch(store, red.owner, made.id, batch.row.id)
    elif change == "delete":
        await files.delete_file(store, red.owner, made.id, file.id)
    else:
        await files.add_file(store, red.owner, made.id, attachment(file, max_tokens=100, overlap_tokens=0))
    assert await ingestion.renew_files(store, "a", [taken.key], 30) == set()
    if change != "add again":  # there is no place any more that passages could be put into
        with pytest.raises(NotFoundError):
            await Replacement(store, red.owner, *taken.key, [], embedder="", version="1").run()
    assert not await finish(store, "a", taken.key)
    row = await row_of(store, file.id)
    assert (row and row.status) == {"cancel": "cancelled", "delete": None, "add again": "in_progress"}[change]


async def test_a_batch_that_is_cancelled_keeps_what_is_done(store, red):
    made = await keep_store(store, red.owner)
    kept = [await keep_file(store, red.owner) for _ in range(2)]
    batch = await files.add_batch(store, red.owner, made.id, [attachment(each) for each in kept])
    taken = await ingestion.claim_file(store, "a", 30)
    await finish(store, "a", taken.key)
    batch = await files.cancel_batch(store, red.owner, made.id, batch.row.id)
    assert batch.sums.by_status == {"completed": 1, "cancelled": 1} and batch.row.cancelled
    assert await ingestion.claim_file(store, "a", 30) is None


async def test_a_file_that_fails_again_is_found_as_it_was(store, red):
    file = await keep_file(store, red.owner)
    made = await keep_store(store, red.owner, file)
    await finish(store, "a", (await ingestion.claim_file(store, "a", 30)).key)
    await files.add_file(store, red.owner, made.id, attachment(file))
    taken = await ingestion.claim_file(store, "a", 30)
    assert await ingestion.fail_file(store, "a", taken.key, "invalid_file", "It is cut short. " * 90)
    row = await row_of(store, file.id)
    assert (row.status, row.error_code, row.version) == ("failed", "invalid_file", "1")
    await files.add_file(store, red.owner, made.id, attachment(file))
    assert (await row_of(store, file.id)).error_code is None


async def test_vectors_of_another_version_are_made_anew_after_all_new_files(store, red):
    old, new = [await keep_file(store, red.owner) for _ in range(2)]
    made = await keep_store(store, red.owner, old)
    await finish(store, "a", (await ingestion.claim_file(store, "a", 30)).key)
    assert await ingestion.read_models(store) == {None: red.owner}
    assert await ingestion.mark_stale(store, None, "e@1") == 0
    assert await ingestion.mark_stale(store, "other", "e@2") == 0
    assert await ingestion.mark_stale(store, None, "e@2") == 1
    assert (await row_of(store, old.id)).status == "completed"
    await files.add_file(store, red.owner, made.id, attachment(new))
    taken = [await ingestion.claim_file(store, "a", 30) for _ in range(2)]
    assert [each.key[1] for each in taken] == [new.id, old.id]
    assert await finish(store, "a", taken[1].key, "e@2")
    assert await ingestion.mark_stale(store, None, "e@2") == 0


async def test_words_without_vectors_are_tried_again_later(store, red, clock):
    file = await keep_file(store, red.owner)
    await keep_store(store, red.owner, file)
    taken = await ingestion.claim_file(store, "a", 30)
    assert await finish(store, "a", taken.key, "", again_s=60)
    assert (await row_of(store, file.id)).status == "completed"
    assert await ingestion.claim_file(store, "a", 30) is None
    clock.now += 60
    assert (await ingestion.claim_file(store, "a", 30)).key == taken.key
