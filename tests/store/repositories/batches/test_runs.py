"""Who runs a batch: leases that run out, batches put off, answers that are written once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import Batch
from kvarn.store.owner import Principal
from kvarn.store.repositories.batches.batches import (
    BatchStatus,
    LeaseLostError,
    cancel_batch,
    claim_batches,
    create_batch,
    finish_batch,
    move_batch,
    release_batch,
    renew_lease,
)
from kvarn.store.repositories.batches.lines import (
    FIRST,
    Answer,
    Line,
    add_lines,
    answer_lines,
    open_lines,
    read_line,
    read_results,
)
from kvarn.store.repositories.queries import read_owned
from new_tenants import create_organization

LEASE_S = 10


async def add_batch(store: Store, who: Principal) -> Batch:
    return await create_batch(
        store,
        who,
        endpoint="/v1/embeddings",
        input_file_id="file-x",
        window_s=100,
        metadata=None,
        output_expires_after_s=None,
    )


async def claimed(store: Store, holder: str, count: int = 8) -> list[str]:
    return [batch.id for batch in await claim_batches(store, holder, LEASE_S, count)]


async def test_a_batch_is_run_by_one_gateway_until_its_lease_runs_out(store: Store, clock: Any) -> None:
    batch = await add_batch(store, await create_organization(store, "red"))
    takers = await asyncio.gather(*[claimed(store, holder) for holder in "abcd"])
    assert sorted(takers) == [[], [], [], [batch.id]]
    first = "abcd"[takers.index([batch.id])]
    clock.now += LEASE_S - 1
    assert await claimed(store, "z") == []
    await renew_lease(store, first, batch.id, LEASE_S)
    clock.now += LEASE_S - 1
    assert await claimed(store, "z") == []
    clock.now += 1
    assert await claimed(store, "z") == [batch.id]
    for change in (
        renew_lease(store, first, batch.id, LEASE_S),
        move_batch(store, first, batch.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS),
        answer_lines(store, first, batch.id, [Answer(1, False, b"{}")]),
        finish_batch(store, first, batch.id, {BatchStatus.FINALIZING}, BatchStatus.COMPLETED, {}, None),
    ):
        with pytest.raises(LeaseLostError):
            await change


async def test_each_organisation_gets_its_turn(store: Store, clock: Any) -> None:
    red, blue = [await create_organization(store, name) for name in ("red", "blue")]
    many = []
    for _ in range(5):
        many.append(await add_batch(store, red))
        clock.now += 1
    late = await add_batch(store, blue)
    assert await claimed(store, "a", 2) == [many[0].id, late.id]
    assert await claimed(store, "b", 2) == [many[1].id, many[2].id]


async def test_a_batch_that_is_put_off_comes_back_at_its_time_or_when_it_is_cancelled(store: Store, clock: Any) -> None:
    who = await create_organization(store, "red")
    batch, other = await add_batch(store, who), await add_batch(store, who)
    assert sorted(await claimed(store, "a")) == sorted([batch.id, other.id])
    for each in (batch, other):
        await release_batch(store, "a", each.id, until=int(clock.now) + 60)
    assert await claimed(store, "b") == []
    await cancel_batch(store, who.owner, other.id)
    assert await claimed(store, "b") == [other.id]
    clock.now += 60
    assert batch.id in await claimed(store, "c")


async def test_a_client_that_cancels_comes_before_the_next_state(store: Store, clock: Any) -> None:
    who = await create_organization(store, "red")
    batch = await add_batch(store, who)
    await claimed(store, "a")
    assert (await cancel_batch(store, who.owner, batch.id)).status == BatchStatus.CANCELLING
    assert (await cancel_batch(store, who.owner, batch.id)).status == BatchStatus.CANCELLING
    moved = await move_batch(store, "a", batch.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS, total=3)
    assert moved.status == BatchStatus.CANCELLING and moved.total == 0
    kept = await finish_batch(store, "a", batch.id, {BatchStatus.VALIDATING}, BatchStatus.FAILED, {}, None, errors=[{}])
    assert kept.status == BatchStatus.CANCELLING and kept.errors == [] and "failed_at" not in kept.times
    assert kept.leased_by == "a"
    await finish_batch(store, "a", batch.id, {BatchStatus.CANCELLING}, BatchStatus.CANCELLED, {}, None)
    with pytest.raises(ConflictError, match="cancelled"):
        await cancel_batch(store, who.owner, batch.id)
    stranger = await create_organization(store, "blue")
    with pytest.raises(NotFoundError):
        await cancel_batch(store, stranger.owner, batch.id)
    assert await claimed(store, "b") == []


async def test_an_answer_is_never_replaced_and_counted_once(store: Store, clock: Any) -> None:
    who = await create_organization(store, "red")
    batch = await add_batch(store, who)
    await claimed(store, "a")
    await add_lines(store, batch.id, [Line(number, f"c{number}", b"{}") for number in (1, 2, 4)])
    answers: list[Any] = [Answer(1, False, b"first", 10, 4, 5), Answer(4, True, b"wrong", 1)]
    for again in (answers, answers[:1], [Answer(1, True, b"second", 99)]):
        await answer_lines(store, "a", batch.id, again)
    now = await read_owned(store, who.owner, Batch, batch.id)
    assert (now.completed, now.failed) == (1, 1)
    assert (now.input_tokens, now.cached_tokens, now.output_tokens) == (11, 4, 5)
    assert await open_lines(store, batch.id, FIRST, 10) == [("", 2)]
    assert (await read_line(store, batch.id, 2)).custom_id == "c2"
    with pytest.raises(LeaseLostError, match="not open"):
        await read_line(store, batch.id, 1)
    results = await read_results(store, batch.id, 0, 2) + await read_results(store, batch.id, 2, 2)
    assert [(result.line, result.content) for result in results] == [(1, b"first"), (2, None), (4, b"wrong")]
