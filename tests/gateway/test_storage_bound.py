"""An organisation that has stored as much as it may: refused before any work is done, and told what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import func, select

from batch_jobs import CHAT, WaitFor, await_end, chat_line, outputs, read_file, send
from gateway_fixtures import wait_for
from kvarn.batches.worker import BatchWorker
from kvarn.config.platform import BatchesConfig, RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.models import Organization
from profiles import thorough
from stored_account import account

MIB = 1024 * 1024
MOST = 2 * MIB
HELLO = {"model": "tiny", "input": "Hej"}
CHAT_HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hej"}]}


@pytest.fixture
def small(serve_stored: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A gateway on each database whose organisations may store 2 MiB each, summed at its start, and when a test says
    so."""
    monkeypatch.setattr("kvarn.jobs.database_jobs.SUM_EVERY_S", 3600.0)
    config = {"retention": RetentionConfig(max_stored_bytes=MOST), "batches": BatchesConfig(poll_s=0.05)}
    with serve_stored(config=config) as server:
        wait_for(lambda: server.do(summed_at(server.gateway.store)) > 0, "the sum at the start")
        yield server


async def summed_at(store: Store) -> int:
    async with store.reading() as session:
        return await session.scalar(select(func.max(Organization.summed_at))) or 0


def fill(server: Any, client: httpx.Client, spare: int = 0) -> str:
    """Store files until but `spare` bytes are left; the id of the last."""
    organization_id = server.authenticator.principals["red"].organization_id
    left = MOST - server.do(account(server.gateway.store, organization_id)) - 1024 - spare
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", b"x" * left)}}
    answer = client.post("/v1/files", **form)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def refused(answer: httpx.Response, param: str | None) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (413, "storage_full", param), answer.text
    assert "retention.max_stored_bytes" in error["message"]
    return str(error["message"])


def test_what_would_be_kept_is_refused_before_any_work_until_there_is_room(small):
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
        red_id = small.authenticator.principals["red"].organization_id
        assert small.do(account(small.gateway.store, red_id)) > 0


def test_the_official_client_hears_a_refusal_once(small):
    with small.add_tenant("red") as red:
        fill(small, red)
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="red", timeout=20) as sdk:  # told not to try again
        with pytest.raises(openai.APIStatusError, match="'store': false") as caught:
            sdk.responses.create(model="tiny", input="Hej")
        assert (caught.value.status_code, caught.value.code) == (413, "storage_full")
        assert sdk.responses.create(model="tiny", input="Hej", store=False).output_text


@pytest.mark.parametrize("extra", [thorough({}), {"stream": True}, {"background": True}])
def test_an_answer_that_began_while_there_was_room_is_kept(small, wait_for, extra):
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
        red_id = small.authenticator.principals["red"].organization_id
        assert small.do(account(small.gateway.store, red_id)) > MOST


def test_twenty_that_come_at_once_near_the_bound_never_pass_it_with_what_they_bring(small):
    with small.add_tenant("red") as red, ThreadPoolExecutor(20) as pool:
        asked = {"items": [{"role": "user", "content": "x" * 300_000}]}
        made = list(pool.map(lambda _: red.post("/v1/conversations", json=asked), range(20)))
        assert sorted(answer.status_code for answer in made) == [200] * 6 + [413] * 14
        red_id = small.authenticator.principals["red"].organization_id
        assert MOST - 302_000 < small.do(account(small.gateway.store, red_id)) <= MOST


def test_a_batch_whose_lines_have_no_room_is_refused(small):
    with small.add_tenant("red") as red:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b" " * 300_000)}}
        file_id = red.post("/v1/files", **form).json()["id"]
        fill(small, red, spare=200_000)
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        refused(red.post("/v1/batches", json=asked), None)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each look at a batch found its organisation full. What waits is looked at again after half a second."""
    monkeypatch.setattr("kvarn.batches.worker.REST_S", 0.5)
    found, refresh = list[bool](), BatchWorker.refresh

    async def noted(worker: BatchWorker, job: Any) -> None:
        await refresh(worker, job)
        found.append(job.full)

    monkeypatch.setattr(BatchWorker, "refresh", noted)
    return found


def meet_the_bound(
    small: Any, client: httpx.Client, wait_for: WaitFor, looks: list[bool]
) -> tuple[dict[str, Any], str]:
    """A batch of 40 lines whose first were answered when there was no room any more, and what fills it."""
    held = small.chat.hold = asyncio.Event()
    batch = send(client, [chat_line(number) for number in range(40)])
    wait_for(lambda: bool(small.chat.submitted), "lines to begin")
    file_id = fill(small, client)
    wait_for(lambda: looks[-1], "the batch's worker to know")
    small.loop.call_soon_threadsafe(held.set)

    def waits() -> bool:
        batch.update(client.get(f"/v1/batches/{batch['id']}").json())
        return batch["request_counts"]["completed"] == len(small.chat.submitted)

    wait_for(waits, "the lines under way to be answered")
    before = len(looks)
    wait_for(lambda: len(looks) > before + 2, "more looks at the batch")
    waits()
    assert batch["status"] == "in_progress" and 0 < batch["request_counts"]["completed"] < 40
    return batch, file_id


@pytest.mark.thorough
def test_a_batch_that_meets_the_bound_pauses_and_goes_on_when_there_is_room(small, wait_for, looks):
    with small.add_tenant("red") as red:
        batch, file_id = meet_the_bound(small, red, wait_for, looks)
        assert red.delete(f"/v1/files/{file_id}").status_code == 200
        await_end(red, batch, wait_for)
        assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        assert "errors" not in batch and len(read_file(red, batch, "output_file_id")) == 40


@pytest.mark.thorough
def test_a_batch_at_the_bound_ends_with_its_window_keeps_its_answers_and_tells_the_rest(small, wait_for, looks):
    with small.add_tenant("red") as red:
        batch, _ = meet_the_bound(small, red, wait_for, looks)
        store = small.gateway.store
        before = store.now
        store.now = lambda: before() + 24 * 3600
        await_end(red, batch, wait_for, "expired")
        answered = read_file(red, batch, "output_file_id")
        assert 0 < len(answered) == batch["request_counts"]["completed"] == len(small.chat.submitted) < 40
        assert [fault["code"] for fault in batch["errors"]["data"]] == ["storage_full"]
        rest = [line for line in outputs(red, batch).values() if line["error"]]
        assert len(rest) == 40 - len(answered)
        assert {line["error"]["code"] for line in rest} == {"storage_full"}


@pytest.mark.thorough
def test_a_batch_whose_last_answers_meet_the_bound_is_completed(small, wait_for, looks):
    held = small.chat.hold = asyncio.Event()
    with small.add_tenant("red") as red:
        batch = send(red, [chat_line(0)])
        wait_for(lambda: bool(small.chat.submitted), "the line to begin")
        fill(small, red)
        wait_for(lambda: looks[-1], "the batch's worker to know")
        small.loop.call_soon_threadsafe(held.set)
        await_end(red, batch, wait_for)
        assert len(read_file(red, batch, "output_file_id")) == 1
