"""What a batch counts for, from its input to its files: kept free before its lines come, and never counted twice."""

from __future__ import annotations

import asyncio

import pytest

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError
from kvarn.store.models import Batch
from kvarn.store.owner import Principal
from kvarn.store.repositories.batches.batches import (
    BatchStatus,
    cancel_batch,
    claim_batches,
    create_batch,
    finish_batch,
    move_batch,
)
from kvarn.store.repositories.batches.lines import Answer, Line, add_lines, answer_lines, delete_lines
from kvarn.store.repositories.files import FileWriter, drop_file
from kvarn.store.repositories.stored_bytes import PART_BYTES, ROW_BYTES
from new_tenants import create_organization
from stored_account import account

INPUT = 100_000
ITSELF = ROW_BYTES + 2
"""What a batch counts for without its lines."""


@pytest.fixture
async def red(store: Store) -> Principal:
    return await create_organization(store, "red")


async def begin(store: Store, who: Principal) -> Batch:
    return await create_batch(
        store,
        who,
        endpoint="/v1/chat/completions",
        input_file_id="file-x",
        window_s=100,
        metadata=None,
        output_expires_after_s=None,
        input_bytes=INPUT,
    )


async def run(store: Store, batch: Batch, answer: bytes) -> None:
    """Two lines, checked and answered."""
    await claim_batches(store, "gw", 60, 10)
    await add_lines(store, batch.id, [Line(1, "a", b"x" * 40_000, "m"), Line(2, "b", b"x" * 40_000, "m")])
    await move_batch(store, "gw", batch.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS)
    await answer_lines(store, "gw", batch.id, [Answer(number, False, answer) for number in (1, 2)])
    await move_batch(store, "gw", batch.id, {BatchStatus.IN_PROGRESS}, BatchStatus.FINALIZING)


async def test_of_two_batches_that_each_fit_one_is_taken(store: Store, red: Principal) -> None:
    store.max_stored_bytes = 2 * INPUT - 1
    made = await asyncio.gather(*[begin(store, red) for _ in range(2)], return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["Batch", "StorageFullError"]
    assert await account(store, red.organization_id) == ITSELF + INPUT


async def test_lines_take_what_is_kept_free_for_them_and_the_rest_is_given_back(store: Store, red: Principal) -> None:
    me = red.organization_id
    store.max_stored_bytes = ITSELF + INPUT
    batch = await begin(store, red)
    await claim_batches(store, "gw", 60, 10)
    line = Line(1, "a", b"x" * 50_000, "m")
    for _ in range(2):  # the second time by a gateway that takes it over
        await delete_lines(store, batch.id)
        await add_lines(store, batch.id, [line])
        assert await account(store, me) == ITSELF + INPUT
    with pytest.raises(StorageFullError):
        await add_lines(store, batch.id, [Line(2, "b", b"x" * 50_000, "m")])
    await move_batch(store, "gw", batch.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS)
    assert await account(store, me) == ITSELF + PART_BYTES + 50_002


async def test_a_batch_that_is_cancelled_or_fails_gives_back_what_was_kept_free(store: Store, red: Principal) -> None:
    cancelled, failed = await begin(store, red), await begin(store, red)
    await claim_batches(store, "gw", 60, 10)
    await claim_batches(store, "gw", 60, 10)
    for batch in (cancelled, failed):
        await add_lines(store, batch.id, [Line(1, "a", b"x" * 50_000, "m")])
    await cancel_batch(store, red.owner, cancelled.id)
    for batch, origin, status in (
        (cancelled, BatchStatus.CANCELLING, BatchStatus.CANCELLED),
        (failed, BatchStatus.VALIDATING, BatchStatus.FAILED),
    ):
        await delete_lines(store, batch.id)
        ended = await finish_batch(store, "gw", batch.id, {origin}, status, {}, None)
        assert ended.status == status
        await account(store, red.organization_id)
    assert await account(store, red.organization_id) == 2 * ITSELF


async def test_answers_count_once_while_they_are_written_to_a_file_and_after(store: Store, red: Principal) -> None:
    me, answer = red.organization_id, b"y" * 30_000
    batch = await begin(store, red)
    await run(store, batch, answer)
    with_lines = await account(store, me)
    assert with_lines == ITSELF + 2 * (PART_BYTES + 2 + 40_000 + 30_000)
    writer = FileWriter(store, red.owner, counted=False)
    for _ in range(2):
        await writer.write(answer)
    fields = {"file_id": await writer.finish(), "filename": "out"}
    assert await account(store, me) == with_lines, "they are there twice"
    origin, status = {BatchStatus.FINALIZING}, BatchStatus.COMPLETED
    await finish_batch(store, "gw", batch.id, origin, status, {"output_file_id": fields}, None)
    over = ITSELF + ROW_BYTES + 60_000
    assert await account(store, me) == over, "the lines are still there"
    await delete_lines(store, batch.id)
    assert await account(store, me) == over
    await drop_file(store, fields["file_id"])
    assert await account(store, me) == ITSELF


async def test_a_file_that_is_given_up_before_it_counted_gives_nothing_back(store: Store, red: Principal) -> None:
    batch = await begin(store, red)
    await run(store, batch, b"y")
    before = await account(store, red.organization_id)
    writer = FileWriter(store, red.owner, counted=False)
    await writer.write(b"y" * 2_000_000)
    await writer.discard()
    assert await account(store, red.organization_id) == before
