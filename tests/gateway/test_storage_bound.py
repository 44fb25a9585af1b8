"""An organisation that has stored as much as it may: refused before any work is done, and told what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from batch_jobs import CHAT, WaitFor, await_end, chat_line, outputs, read_file, send
from kvarn.config.platform import BatchesConfig, RetentionConfig, StoreConfig
from kvarn.gateway.storage_room import StorageRoom
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.stored_bytes import count_bytes
from kvarn.store.repositories.tenants import create_organization
from kvarn.wire.openai.errors import ApiError
from stored_account import account

MIB = 1024 * 1024
MOST = 2 * MIB
HELLO = {"model": "tiny", "input": "Hej"}
CHAT_HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hej"}]}


@pytest.fixture
def small(serve: Any, database_url: str, wait_for: Any) -> Iterator[Any]:
    """A gateway on each database whose organisations may store 2 MiB each."""

    def prepare(house: Any) -> None:
        changes = {
            "store": StoreConfig(url=database_url),
            "retention": RetentionConfig(max_stored_bytes=MOST),
            "batches": BatchesConfig(poll_s=0.05),
        }
        house.config = house.config.model_copy(update=changes)

    with serve(prepare) as house:
        with house.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200, "the gateway to be ready")
        yield house


def fill(house: Any, client: httpx.Client, spare: int = 0) -> str:
    """Store files until but `spare` bytes are left; the id of the last."""
    organization_id = house.doorkeeper.principals["red"].organization_id
    left = MOST - house.do(account(house.gateway.store, organization_id)) - 1024 - spare
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", b"x" * left)}}
    answer = client.post("/v1/files", **form)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def refused(answer: httpx.Response, param: str | None) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (413, "storage_full", param), answer.text
    assert "retention.max_stored_bytes" in error["message"]
    return str(error["message"])


def test_what_would_be_kept_is_refused_before_any_work_until_there_is_room(small: Any) -> None:
    with small.add_tenant("red") as red, small.add_tenant("blue") as blue:
        kept = red.post("/v1/conversations", json={}).json()["id"]
        file_id = fill(small, red)
        message = refused(red.post("/v1/responses", json=HELLO), "store")
        assert "'store': false" in message
        refused(red.post("/v1/responses", json={**HELLO, "stream": True}), "store")
        refused(red.post("/v1/responses", json={**HELLO, "conversation": kept, "store": False}), "conversation")
        refused(red.post("/v1/responses", json={**HELLO, "background": True}), None)
        refused(red.post(CHAT, json={**CHAT_HELLO, "store": True}), "store")
        refused(red.post("/v1/conversations", json={}), None)
        items = {"items": [{"role": "user", "content": "x"}]}
        refused(red.post(f"/v1/conversations/{kept}/items", json=items), None)
        assert not small.chat.submitted, "no work was done"
        for asked in ({**HELLO, "store": False}, {**HELLO, "store": False, "stream": True}):
            assert red.post("/v1/responses", json=asked).status_code == 200
        assert red.post(CHAT, json=CHAT_HELLO).status_code == 200
        assert blue.post("/v1/responses", json=HELLO).status_code == 200, "another organisation has room of its own"
        assert red.get(f"/v1/conversations/{kept}").status_code == 200
        assert red.delete(f"/v1/files/{file_id}").status_code == 200
        response = red.post("/v1/responses", json=HELLO).json()
        assert red.get(f"/v1/responses/{response['id']}").status_code == 200
        red_id = small.doorkeeper.principals["red"].organization_id
        assert small.do(account(small.gateway.store, red_id)) > 0


def test_the_official_client_hears_a_refusal_once(small: Any) -> None:
    with small.add_tenant("red") as red:
        fill(small, red)
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="red", timeout=20) as sdk:
        with pytest.raises(openai.APIStatusError, match="'store': false") as caught:
            sdk.responses.create(model="tiny", input="Hej")
        assert (caught.value.status_code, caught.value.code) == (413, "storage_full")
        assert sdk.responses.create(model="tiny", input="Hej", store=False).output_text


@pytest.mark.parametrize("extra", [{}, {"stream": True}, {"background": True}])
def test_an_answer_that_began_while_there_was_room_is_kept(
    small: Any, wait_for: Callable[..., None], extra: dict[str, Any]
) -> None:
    held = small.chat.hold = asyncio.Event()
    with small.add_tenant("red") as red, ThreadPoolExecutor(1) as pool:
        conversation = red.post("/v1/conversations", json={}).json()["id"]
        asked = {**HELLO, "conversation": conversation, **extra}
        answer = pool.submit(red.post, "/v1/responses", json=asked)
        wait_for(lambda: bool(small.chat.submitted), "the answer to begin")
        fill(small, red)
        small.loop.call_soon_threadsafe(held.set)
        assert answer.result(20).status_code == 200
        path = f"/v1/conversations/{conversation}/items"
        wait_for(lambda: len(red.get(path).json()["data"]) == 2, "the answer to be kept")
        red_id = small.doorkeeper.principals["red"].organization_id
        assert small.do(account(small.gateway.store, red_id)) > MOST


def test_twenty_that_come_at_once_near_the_bound_never_pass_it_with_what_they_bring(small: Any) -> None:
    with small.add_tenant("red") as red, ThreadPoolExecutor(20) as pool:
        asked = {"items": [{"role": "user", "content": "x" * 300_000}]}
        made = list(pool.map(lambda _: red.post("/v1/conversations", json=asked), range(20)))
        assert sorted(answer.status_code for answer in made) == [200] * 6 + [413] * 14
        red_id = small.doorkeeper.principals["red"].organization_id
        assert MOST - 302_000 < small.do(account(small.gateway.store, red_id)) <= MOST


def test_a_batch_whose_lines_have_no_room_is_refused_or_fails(small: Any, wait_for: WaitFor) -> None:
    with small.add_tenant("red") as red:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b" " * 300_000)}}
        file_id = red.post("/v1/files", **form).json()["id"]  # type: ignore[arg-type]
        fill(small, red, spare=200_000)
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        refused(red.post("/v1/batches", json=asked), None)
    with small.add_tenant("red") as red:
        lines = [chat_line(number) for number in range(900)]  # of a file that fits once more, and lines that do not
        form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", b"x" * int(1.7 * MIB))}}
        assert red.post("/v1/files", **form).status_code == 200  # type: ignore[arg-type]
        batch = await_end(red, send(red, lines), wait_for, "failed")
        assert [fault["code"] for fault in batch["errors"]["data"]] == ["storage_full"]
        assert not small.chat.submitted
        red_id = small.doorkeeper.principals["red"].organization_id
        assert small.do(account(small.gateway.store, red_id)) <= MOST + 1024


def test_a_batch_that_meets_the_bound_keeps_its_answers_and_tells_the_rest(small: Any, wait_for: WaitFor) -> None:
    held = small.chat.hold = asyncio.Event()
    with small.add_tenant("red") as red:
        batch = send(red, [chat_line(number) for number in range(40)])
        wait_for(lambda: bool(small.chat.submitted), "lines to begin")
        fill(small, red)
        small.do(asyncio.sleep(0.5))  # ten looks
        small.loop.call_soon_threadsafe(held.set)
        await_end(red, batch, wait_for, "cancelled")
        answered = read_file(red, batch, "output_file_id")
        assert 0 < len(answered) == batch["request_counts"]["completed"] == len(small.chat.submitted) < 40
        assert [fault["code"] for fault in batch["errors"]["data"]] == ["storage_full"]
        rest = [line for line in outputs(red, batch).values() if line["error"]]
        assert len(rest) == 40 - len(answered)
        assert {line["error"]["code"] for line in rest} == {"storage_full"}


def test_a_batch_whose_last_answers_meet_the_bound_is_completed(small: Any, wait_for: WaitFor) -> None:
    held = small.chat.hold = asyncio.Event()
    with small.add_tenant("red") as red:
        batch = send(red, [chat_line(0)])
        wait_for(lambda: bool(small.chat.submitted), "the line to begin")
        fill(small, red)
        small.do(asyncio.sleep(0.5))
        small.loop.call_soon_threadsafe(held.set)
        await_end(red, batch, wait_for)
        assert len(read_file(red, batch, "output_file_id")) == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_room_is_asked_for_once_a_second_and_its_end_is_seen_then(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = (await create_organization(store, "red")).organization_id
    clock = Clock()
    room = StorageRoom(store, 100, clock)
    await asyncio.gather(*[room.check(me, "store", "x") for _ in range(5)])
    async with store.transaction() as session:
        await count_bytes(session, me, 100)
    await room.check(me, "store", "x")
    clock.now += 1.1
    with pytest.raises(ApiError, match="stores 100 of the 100 bytes"):
        await room.check(me, "store", "x")
    async with store.transaction() as session:
        await count_bytes(session, me, -1)
    await room.check(me, "store", "x")  # at once: that there is none is not remembered


async def test_nobody_is_refused_by_a_database_that_does_not_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def away(_: Store, organization_id: str) -> int:
        asked.append(organization_id)
        raise StoreAwayError("away")

    monkeypatch.setattr("kvarn.gateway.storage_room.read_stored_bytes", away)
    room = StorageRoom(store, 100, Clock())
    await asyncio.gather(*[room.check("org-1", "store", "x") for _ in range(5)])
    assert asked == ["org-1"], "one question a second, not one each"
