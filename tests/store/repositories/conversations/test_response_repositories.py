"""Responses and conversations in both databases: chains, leases, locks, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import Conversation, StoredResponse
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import background_responses as background
from kvarn.store.repositories.conversations import conversations, histories, responses
from kvarn.store.repositories.conversations.conversations import ConversationLockedError, Lock
from kvarn.store.repositories.conversations.histories import HistoryTooLongError, decode_item
from kvarn.store.repositories.conversations.responses import Ended
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.queries import delete_owned, read_owned
from new_tenants import create_organization


@pytest.fixture
async def owner(store: Store) -> Owner:
    return (await create_organization(store, "one")).owner


def body(response_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": response_id,
        "created_at": 1,
        "status": "completed",
        "output": [],
        "previous_response_id": None,
        **changes,
    }


def message(text: str) -> dict[str, Any]:
    return {"id": f"msg_{text}", "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def keep(store: Store, owner: Owner, number: int) -> None:
    previous = f"resp_{number - 1}" if number else None
    ended = Ended(f"resp_{number}", body(f"resp_{number}"), [message(str(number))], [], previous)
    await responses.keep_response(store, owner, ended, stored=True)


async def test_a_chain_is_read_in_one_go_from_behind_what_is_gone(store: Store, owner: Owner) -> None:
    for number in range(5):
        await keep(store, owner, number)
    chain = await responses.read_chain(store, owner, "resp_4")
    assert [row.id for row in chain] == [f"resp_{number}" for number in range(5)]
    await delete_owned(store, owner, StoredResponse, "resp_1")
    assert [row.id for row in await responses.read_chain(store, owner, "resp_4")] == ["resp_2", "resp_3", "resp_4"]
    stranger = (await create_organization(store, "two")).owner
    neighbour = Owner(owner.organization_id, stranger.project_id)
    for other in (stranger, neighbour):
        with pytest.raises(NotFoundError):
            await responses.read_chain(store, other, "resp_4")


async def test_a_chain_never_crosses_into_another_project(store: Store, owner: Owner) -> None:
    stranger = (await create_organization(store, "two")).owner
    await keep(store, stranger, 0)
    await keep(store, owner, 1)  # says that it goes on from the stranger's
    assert [row.id for row in await responses.read_chain(store, owner, "resp_1")] == ["resp_1"]


async def test_a_chain_has_an_end(store: Store, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_CHAIN", 3)
    for number in range(4):
        await keep(store, owner, number)
    assert len(await responses.read_chain(store, owner, "resp_2")) == 3
    with pytest.raises(HistoryTooLongError):
        await responses.read_chain(store, owner, "resp_3")
    looped = Ended("resp_loop", body("resp_loop"), [], [], "resp_loop")
    await responses.keep_response(store, owner, looped, stored=True)
    with pytest.raises(HistoryTooLongError):
        await responses.read_chain(store, owner, "resp_loop")


async def queue(store: Store, owner: Owner, response_id: str, gateway_id: str, lease_s: int = 10) -> None:
    waiting = body(response_id, status="queued")
    await background.queue_response(store, owner, waiting, [], {"asked": {}}, None, gateway_id, lease_s)


async def claim(store: Store, gateway_id: str, lease_s: int, most: int) -> list[StoredResponse]:
    claimed = []
    while len(claimed) < most and (row := await background.claim_response(store, gateway_id, lease_s)) is not None:
        claimed.append(row)
    return claimed


async def test_a_claim_reads_and_locks_one_response(store: Store, owner: Owner, clock: Any) -> None:
    for number in range(3):
        await queue(store, owner, f"resp_{number}", "one", lease_s=1)
    clock.now += 2
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    claimed = await background.claim_response(store, "two", 10)
    event.remove(store.engine.sync_engine, "before_cursor_execute", note)
    assert claimed is not None and claimed.id == "resp_0"
    look, read = [statement for statement in statements if statement.startswith("SELECT")]
    assert "body" not in look and "LIMIT" in look and "LIMIT" in read


async def find_item(store: Store, owner: Owner, item_id: str) -> dict[str, Any] | None:
    found = await conversations.find_items_by_id(store, owner, [item_id, "msg_nowhere"])
    assert found.keys() <= {item_id}
    return decode_item(found[item_id]) if found else None


async def status_of(store: Store, owner: Owner, response_id: str) -> str:
    return (await read_owned(store, owner, StoredResponse, response_id)).status


async def test_a_lease_is_its_gateways_until_it_runs_out(store: Store, owner: Owner, clock: Any) -> None:
    await queue(store, owner, "resp_a", "one")
    assert await claim(store, "two", 10, 10) == []
    clock.now += 9
    assert await background.renew_leases(store, "one", ["resp_a"], 10) == {"resp_a"}
    assert await background.renew_leases(store, "two", ["resp_a"], 10) == set()
    clock.now += 9
    assert await claim(store, "two", 10, 10) == []
    clock.now += 1
    claimed = await claim(store, "two", 10, 10)
    assert [(row.id, row.attempts) for row in claimed] == [("resp_a", 2)]
    assert await background.renew_leases(store, "one", ["resp_a"], 10) == set()
    ended = Ended("resp_a", body("resp_a"), [], [])
    assert not await responses.finish_background(store, owner, ended, "one")
    assert await status_of(store, owner, "resp_a") == "queued"
    assert await responses.finish_background(store, owner, ended, "two")
    assert await status_of(store, owner, "resp_a") == "completed"
    clock.now += 100
    assert await claim(store, "three", 10, 10) == []


async def test_a_response_is_claimed_by_one_gateway_however_many_ask(store: Store, owner: Owner, clock: Any) -> None:
    for number in range(12):
        await queue(store, owner, f"resp_{number}", "dead")
    clock.now += 11
    claims = await asyncio.gather(*[claim(store, f"gw_{i}", 10, 5) for i in range(6)])
    claimed = [row.id for rows in claims for row in rows]
    assert len(claimed) == len(set(claimed)) and all(len(rows) <= 5 for rows in claims)
    while rows := await claim(store, "late", 10, 5):
        claimed += [row.id for row in rows]
    assert sorted(claimed) == sorted(f"resp_{number}" for number in range(12))


async def test_what_is_given_back_is_taken_at_once_and_the_attempt_does_not_count(
    store: Store, owner: Owner, clock: Any
) -> None:
    await queue(store, owner, "resp_a", "one")
    await background.release_response(store, "two", "resp_a")  # not its own
    assert await claim(store, "two", 10, 10) == []
    await background.release_response(store, "one", "resp_a")
    assert [row.attempts for row in await claim(store, "two", 10, 10)] == [1]


async def test_a_cancelled_response_is_nobodys_any_more(store: Store, owner: Owner, clock: Any) -> None:
    await queue(store, owner, "resp_a", "one")
    row = await background.cancel_response(store, owner, "resp_a")
    assert (row.status, row.body["status"]) == ("cancelled", "cancelled")
    assert await background.renew_leases(store, "one", ["resp_a"], 10) == set()
    assert not await responses.finish_background(store, owner, Ended("resp_a", body("resp_a"), [], []), "one")
    clock.now += 100
    assert await claim(store, "two", 10, 10) == []
    stranger = (await create_organization(store, "two")).owner
    with pytest.raises(NotFoundError):
        await background.cancel_response(store, stranger, "resp_a")


async def test_a_conversation_has_one_writer_at_a_time(store: Store, owner: Owner, clock: Any) -> None:
    made = await conversations.create_conversation(store, owner, {}, [message("first")])
    locks = [Lock(made.id, f"resp_{number}") for number in range(8)]
    tries = await asyncio.gather(
        *[conversations.lock_conversation(store, owner, lock, 10) for lock in locks], return_exceptions=True
    )
    got = [lock for lock, result in zip(locks, tries, strict=True) if result is None]
    assert len(got) == 1 and all(each is None or isinstance(each, ConversationLockedError) for each in tries)
    held, other = got[0], next(lock for lock in locks if lock not in got)
    with pytest.raises(ConversationLockedError):
        await conversations.add_items(store, owner, made.id, [message("x")])
    clock.now += 9
    await conversations.renew_locks(store, [held.response_id], 10)
    clock.now += 9
    with pytest.raises(ConversationLockedError):
        await conversations.lock_conversation(store, owner, other, 10)
    await conversations.unlock_conversation(store, other)  # not its own
    with pytest.raises(ConversationLockedError):
        await conversations.lock_conversation(store, owner, other, 10)
    clock.now += 1
    await conversations.lock_conversation(store, owner, other, 10)


async def test_a_turn_is_added_whole_or_not_at_all(store: Store, owner: Owner, clock: Any) -> None:
    made = await conversations.create_conversation(store, owner, {}, [message("first")])
    lock = Lock(made.id, "resp_a")
    await conversations.lock_conversation(store, owner, lock, 10)
    clashing = Ended("resp_a", body("resp_a"), [], [], None, lock, [message("second"), message("first")])
    with pytest.raises(ConflictError):
        await responses.keep_response(store, owner, clashing, stored=True)
    with pytest.raises(NotFoundError):
        await read_owned(store, owner, StoredResponse, "resp_a")
    turn = Ended("resp_a", body("resp_a"), [], [], None, lock, [message("second"), message("third")])
    await responses.keep_response(store, owner, turn, stored=True)
    ids = [decode_item(text)["id"] for text in await conversations.read_history(store, owner, made.id)]
    assert ids == ["msg_first", "msg_second", "msg_third"]
    await conversations.add_items(store, owner, made.id, [message("fourth")])  # the lock went with the turn
    page = await conversations.list_items(store, owner, made.id, Cursor(2, after="msg_third"))
    assert [item["id"] for item in page.items] == ["msg_second", "msg_first"] and not page.has_more


async def test_items_go_with_their_conversation(store: Store, owner: Owner) -> None:
    made = await conversations.create_conversation(store, owner, {}, [message("a")])
    other = await conversations.create_conversation(store, owner, {}, [message("a")])
    assert await find_item(store, owner, "msg_a") == message("a")
    await delete_owned(store, owner, Conversation, made.id)
    assert await find_item(store, owner, "msg_a") == message("a")
    await conversations.delete_item(store, owner, other.id, "msg_a")
    assert await find_item(store, owner, "msg_a") is None


async def test_of_several_items_of_one_name_the_newest_is_found(store: Store, owner: Owner, clock: Any) -> None:
    made = []
    for text in "baced":
        item = {**message(text), "id": "msg_own"}
        made.append((await conversations.create_conversation(store, owner, {}, [item]), item))
        clock.now += 1
    for conversation, item in reversed(made):
        assert await find_item(store, owner, "msg_own") == item
        await delete_owned(store, owner, Conversation, conversation.id)


async def test_what_is_kept_is_kept_to_the_letter(store: Store, owner: Owner) -> None:
    odd = {"z": 1, "a": {"b": "\0 \ud7ff 🌍", "aa": [1.5, None, True]}}
    ended = Ended("resp_a", body("resp_a", tools=[odd]), [message("\0")], [[[1, 0]]])
    await responses.keep_response(store, owner, ended, stored=True)
    row = await read_owned(store, owner, StoredResponse, "resp_a")
    assert isinstance(row, StoredResponse)
    assert row.body["tools"] == [odd] and list(row.body["tools"][0]) == ["z", "a"]
    assert (row.input_items, row.cuts) == ([message("\0")], [[[1, 0]]])
    said = Ended("resp_b", body("resp_b", output=[message("\0 🌍")]), [message("\0")], [], "resp_a")
    await responses.keep_response(store, owner, said, stored=True)
    chain = await responses.read_chain(store, owner, "resp_b")
    assert [turn.items() for turn in chain] == [[message("\0")], [message("\0"), message("\0 🌍")]]
    item = {**message("\0 🌍"), "id": "msg_own"}
    made = await conversations.create_conversation(store, owner, {}, [item])
    assert [decode_item(text) for text in await conversations.read_history(store, owner, made.id)] == [item]


async def test_a_history_has_its_bounds(store: Store, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await conversations.create_conversation(store, owner, {}, [message(str(number) * 20) for number in range(4)])
    for number in range(4):
        await keep(store, owner, number)
    ids = [f"resp_{number}" for number in range(4)]
    for name, most in (("ITEMS", 3), ("BYTES", 410)):
        with monkeypatch.context() as bounds:
            bounds.setattr(histories, f"MAX_HISTORY_{name}", most)
            with pytest.raises(HistoryTooLongError):
                await conversations.read_history(store, owner, made.id)
            with pytest.raises(HistoryTooLongError):
                await responses.read_chain(store, owner, "resp_3")
            assert len(await responses.read_chain(store, owner, "resp_1")) == 2
            assert len(await responses.read_turns(store, owner, [*ids[:2], "resp_nowhere"])) == 2
    with monkeypatch.context() as bounds:
        bounds.setattr(histories, "MAX_HISTORY_ITEMS", 4)
        assert len(await conversations.read_history(store, owner, made.id)) == 4
        with pytest.raises(HistoryTooLongError):
            await conversations.add_items(store, owner, made.id, [message("more")])
        await conversations.delete_item(store, owner, made.id, "msg_" + "0" * 20)
        await conversations.add_items(store, owner, made.id, [message("more")])
        bounds.setattr(histories, "MAX_HISTORY_BYTES", 100)
        with pytest.raises(HistoryTooLongError):
            await responses.read_turns(store, owner, ids)
        with pytest.raises(HistoryTooLongError):
            await conversations.find_items_by_id(store, owner, ["msg_" + "1" * 20, "msg_" + "2" * 20])


def test_a_message_counts_once_for_each_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_HISTORY_ITEMS", 5)
    parts = [{"type": "input_text", "text": "x"}]
    call = {"type": "function_call", "arguments": "{}"}
    histories.check_items([{"content": parts * 3}, call, {"content": []}])
    for each in ({"content": parts * 4}, {"output": parts * 4}, {"summary": parts * 4}):
        with pytest.raises(HistoryTooLongError):
            histories.check_items([each, call, call])
