"""All that an organisation stores is in its account after the next sum, and bounded in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StorageFullError
from kvarn.store.models import Conversation, StoredCompletion, StoredResponse
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.batches.batches import BatchStatus, claim_batches, create_batch, finish_batch
from kvarn.store.repositories.batches.lines import Answer, Line, add_lines, answer_lines
from kvarn.store.repositories.conversations import background_responses as background
from kvarn.store.repositories.conversations import conversations, responses
from kvarn.store.repositories.conversations import stored_completions as completions
from kvarn.store.repositories.conversations.conversations import Lock
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.store.repositories.files import FileWriter, drop_file
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.prompt_samples import add_samples, new_sample
from kvarn.store.repositories.queries import delete_owned
from kvarn.store.repositories.retention import delete_expired
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes
from new_tenants import create_organization
from stored_account import account

TEXT = "Mjöl 🌾 " * 100
DAY = 24 * 3600
NOW = 2_000_000_000


def body(response_id: str, **changes: Any) -> dict[str, Any]:
    fields = {"created_at": NOW, "status": "completed", "output": [TEXT], "previous_response_id": None}
    return {"id": response_id, **fields, **changes}


def item(name: str) -> dict[str, Any]:
    return {"id": f"msg_{name}", "type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}


@pytest.fixture
async def red(store: Store) -> Principal:
    store.now = lambda: NOW
    return await create_organization(store, "red")


async def keep_response(store: Store, owner: Owner, name: str, lock: Lock | None = None) -> None:
    added = [item(name), item(f"{name}-said")] if lock else []
    ended = Ended(f"resp_{name}", body(f"resp_{name}"), [item(name)], [[4, 0]], None, lock, added)
    await responses.keep_response(store, owner, ended, stored=True)


async def keep_completion(store: Store, owner: Owner, name: str) -> None:
    kept = {"id": f"chatcmpl-{name}", "created": NOW, "model": "m", "choices": [TEXT]}
    await completions.add_completion(store, owner, kept, metadata={"é": "\0"}, messages=[{"content": TEXT}])


async def run_in_background(store: Store, owner: Owner, name: str) -> None:
    waiting, asked = body(f"resp_{name}", status="queued", output=[]), {"asked": {"tools": [TEXT]}}
    await background.queue_response(store, owner, waiting, [item(name)], asked, None, "gw", 60)
    await account(store, owner.organization_id)
    ended = Ended(f"resp_{name}", body(f"resp_{name}"), [item(name)], [[4, 0]])
    assert await responses.finish_background(store, owner, ended, "gw")


async def run_batch(store: Store, who: Principal, lines: int = 3, holder: str = "gw", input_bytes: int = 0) -> str:
    asked: dict[str, Any] = {"endpoint": "/v1/chat/completions", "input_file_id": "file-x", "window_s": 100}
    asked["input_bytes"] = input_bytes
    batch = await create_batch(store, who, metadata={"a": TEXT}, output_expires_after_s=None, **asked)
    await add_lines(store, batch.id, [Line(n, f"ö{n}", TEXT.encode(), "m") for n in range(1, lines + 1)])
    await claim_batches(store, holder, 60, 100)
    await answer_lines(store, holder, batch.id, [Answer(n, False, TEXT.encode()) for n in (1, 2)])
    await answer_lines(store, holder, batch.id, [Answer(n, False, b"another") for n in (1, 2)])
    return batch.id


async def keep_one_of_each(store: Store, who: Principal, name: str) -> None:
    owner = who.owner
    await keep_response(store, owner, name)
    await keep_completion(store, owner, name)
    await run_in_background(store, owner, f"bg{name}")
    made = await conversations.create_conversation(store, owner, {"a": "b"}, [item(name), item(f"{name}2")])
    lock = Lock(made.id, f"resp_turn{name}")
    await conversations.lock_conversation(store, owner, lock, 60)
    await keep_response(store, owner, f"turn{name}", lock)
    batch_id = await run_batch(store, who)
    errors = [{"code": "x", "message": TEXT}]
    origin, status = {BatchStatus.VALIDATING}, BatchStatus.FAILED
    await finish_batch(store, "gw", batch_id, origin, status, {}, None, errors=errors)
    await add_samples(store, [new_sample(owner, "r", "m", NOW, b"sealed")])


async def test_every_kind_counts_for_what_it_takes_and_gives_it_back_when_it_is_deleted(
    store: Store, red: Principal
) -> None:
    owner, me = red.owner, red.organization_id
    await keep_response(store, owner, "a")
    assert await account(store, me) > 2 * len(TEXT.encode())
    await keep_completion(store, owner, "a")
    assert await account(store, me) > 4 * len(TEXT.encode())
    before = await account(store, me)
    await completions.change_metadata(store, owner, "chatcmpl-a", {"longer": TEXT})
    assert await account(store, me) > before + len(TEXT.encode()) - 10
    await completions.change_metadata(store, owner, "chatcmpl-a", {})
    assert await account(store, me) < before
    made = await conversations.create_conversation(store, owner, {}, [item("1")])
    await conversations.update_conversation(store, owner, made.id, {"a": TEXT})
    await conversations.add_items(store, owner, made.id, [item("2"), item("3")])
    await account(store, me)
    await conversations.delete_item(store, owner, made.id, "msg_2")
    with pytest.raises(NotFoundError):
        await conversations.delete_item(store, owner, made.id, "msg_2")
    await account(store, me)
    await delete_owned(store, owner, Conversation, made.id)
    await run_in_background(store, owner, "b")
    await account(store, me)
    await delete_owned(store, owner, StoredResponse, "resp_b")
    await delete_owned(store, owner, StoredResponse, "resp_a")
    await delete_owned(store, owner, StoredCompletion, "chatcmpl-a")
    assert await account(store, me) == 0


async def test_a_sweep_and_an_erasure_give_back_what_they_delete(store: Store, red: Principal) -> None:
    blue = await create_organization(store, "blue")
    for who, name in ((red, "r"), (blue, "b")):
        await keep_one_of_each(store, who, name)
    theirs = await account(store, blue.organization_id)
    assert await account(store, red.organization_id) == theirs
    await delete_organization_data(store, red.organization_id)
    assert await account(store, red.organization_id) == 0
    assert await account(store, blue.organization_id) == theirs
    store.now = lambda: NOW + 100 * DAY
    swept = await delete_expired(store, RetentionConfig(conversations_days=1, files_days=1))
    assert not swept.failures and len(+swept.deleted) == 5, "all but files"
    assert await account(store, blue.organization_id) == 0


async def test_of_twenty_writers_near_the_bound_as_many_as_fit_are_let_in(store: Store, red: Principal) -> None:
    owner, me = red.owner, red.organization_id
    one = (await conversations.create_conversation(store, owner, {}, [item("x")])).counted_bytes
    await account(store, me)
    store.quota.max_bytes = 8 * one + one // 2

    async def make() -> str:
        return (await conversations.create_conversation(store, owner, {}, [item("x")])).id

    done = await asyncio.gather(*[make() for _ in range(20)], return_exceptions=True)
    kept = [result for result in done if isinstance(result, str)]
    assert len(kept) == 7
    assert sum(isinstance(result, StorageFullError) for result in done) == 13, done
    assert await account(store, me) == 8 * one
    await delete_owned(store, owner, Conversation, kept[0])
    with pytest.raises(StorageFullError):
        await make()
    store.now = lambda: NOW + 31
    await account(store, me)
    assert await make(), "what was deleted makes room with the next sum"
    blue = await create_organization(store, "blue")
    await conversations.create_conversation(store, blue.owner, {}, [item("x")])


async def test_each_organisation_has_its_sum_however_many_are_written_at_once(
    store: Store, red: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvarn.store.repositories.stored_bytes._SUMMED_AT_ONCE", 1)
    blue = await create_organization(store, "blue")
    for who, size in ((red, 1), (blue, 5)):
        await conversations.create_conversation(store, who.owner, {"a": "x" * size}, [])
    stored = [await account(store, who.organization_id) for who in (red, blue)]
    assert stored[1] - stored[0] == 4


async def test_a_process_sees_what_others_wrote_with_the_next_sum(store: Store, red: Principal) -> None:
    other = Store(store.url, timeout_s=20, max_stored_bytes=3000)
    await conversations.create_conversation(store, red.owner, {}, [item("x")])
    await conversations.create_conversation(other, red.owner, {}, [])
    await account(store, red.organization_id)
    with pytest.raises(StorageFullError):
        await conversations.create_conversation(other, red.owner, {}, [])
    await other.close()


REFUSED: dict[str, Callable[[Store, Principal], Awaitable[object]]] = {
    "conversation": lambda s, who: conversations.create_conversation(s, who.owner, {}, []),
    "background": lambda s, who: run_in_background(s, who.owner, "late"),
    "batch": lambda s, who: create_batch(
        s, who, endpoint="e", input_file_id="f", window_s=1, metadata=None, output_expires_after_s=None
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_begins_at_the_bound_is_refused_and_leaves_nothing(store: Store, red: Principal, kind: str) -> None:
    await keep_response(store, red.owner, "a")
    most = store.quota.max_bytes = await account(store, red.organization_id)
    with pytest.raises(StorageFullError, match=rf"stores {most} of the {most} bytes"):
        await REFUSED[kind](store, red)
    assert await account(store, red.organization_id) == most


async def test_a_batch_counts_for_its_input_and_answers_until_its_files_do(store: Store, red: Principal) -> None:
    me, itself = red.organization_id, ROW_BYTES + json_bytes({"a": TEXT})
    batch_id = await run_batch(store, red, input_bytes=100_000)
    answers = 2 * len(TEXT.encode())
    assert await account(store, me) == itself + 100_000 + answers
    writer = FileWriter(store, red.owner, counted=False)
    await writer.write(TEXT.encode())
    fields = {"file_id": await writer.finish(), "filename": "out"}
    assert await account(store, me) == itself + 100_000 + answers, "the answers are there twice"
    files = {"output_file_id": fields}
    await finish_batch(store, "gw", batch_id, {BatchStatus.VALIDATING}, BatchStatus.COMPLETED, files, None)
    assert await account(store, me) == itself + 2 + ROW_BYTES + len(TEXT.encode())
    await drop_file(store, fields["file_id"])
    assert await account(store, me) == itself + 2


async def test_samples_that_do_not_fit_are_not_kept_and_one_organisation_s_trouble_is_its_own(
    store: Store, red: Principal
) -> None:
    blue = await create_organization(store, "blue")
    gone = new_sample(Owner("org-gone", "proj-gone"), "r", "m", NOW, b"s")
    small = [new_sample(red.owner, "r", "m", NOW, b"s" * 100) for _ in range(4)]
    large = new_sample(blue.owner, "r", "m", NOW, b"s" * 100_000)
    store.quota.max_bytes = 4 * (1024 + 100)
    missed = await add_samples(store, [gone, large, *small])
    assert (missed.full, missed.failed) == (1, 1) and missed.error is not None
    assert await account(store, red.organization_id) == 4 * (1024 + 100)
    assert await account(store, blue.organization_id) == 0


async def test_a_response_that_begins_or_is_cancelled_counts_for_what_it_is_then(store: Store, red: Principal) -> None:
    waiting = body("resp_a", status="queued", output=[])
    await background.queue_response(store, red.owner, waiting, [], {}, None, "gw", 60)
    await background.note_begun(store, "gw", {**waiting, "status": "in_progress", "model": "a-longer-name"})
    before = await account(store, red.organization_id)
    await background.cancel_response(store, red.owner, "resp_a")
    assert await account(store, red.organization_id) == before - len("in_progress") + len("cancelled")
