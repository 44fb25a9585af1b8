"""Anthropic's message batches through the official client: run, listed, cancelled, their results, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import kvarn.batches.run as run_module
from kvarn.store.errors import NotFoundError
from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

HELLO: Any = [{"role": "user", "content": "Hej"}]
WELL: Any = {"model": "tiny", "max_tokens": 50, "messages": HELLO}


@pytest.fixture
def claude(runner: Any) -> Iterator[anthropic.Anthropic]:
    with runner.claude() as made:
        yield made


@pytest.fixture
def client(runner: Any) -> Iterator[httpx.Client]:
    with runner.client() as made:
        yield made


@pytest.fixture(scope="module")
def serve_requests(serve: Any) -> Iterator[httpx.Client]:
    """A client of a gateway that takes larger bodies than lines."""
    with serve() as server, server.client() as made:
        yield made


def request(custom_id: str, **changes: Any) -> Any:
    return {"custom_id": custom_id, "params": {**WELL, **changes}}


def ended(claude: anthropic.Anthropic, batch_id: str) -> Callable[[], bool]:
    return lambda: claude.messages.batches.retrieve(batch_id).processing_status == "ended"


def test_a_batch_of_messages_is_run_and_deleted(claude, client, wait_for):
    asked = [request("well", system="Be brief."), request("wrong", max_tokens=0), request("none", model="none")]
    batch = claude.messages.batches.create(requests=asked)
    assert batch.id.startswith("msgbatch_") and batch.type == "message_batch"
    assert batch.processing_status == "in_progress" and batch.request_counts.processing == 3
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600 and batch.results_url is None
    wait_for(ended(claude, batch.id), "the batch to end")
    batch = claude.messages.batches.retrieve(batch.id)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing, counts.canceled) == (1, 2, 0, 0)
    assert batch.ended_at is not None and batch.results_url is not None
    results: Any = {each.custom_id: each.result for each in claude.messages.batches.results(batch.id)}
    assert set(results) == {"well", "wrong", "none"} and results["well"].type == "succeeded"
    message = results["well"].message
    assert message.content[0].text == "Hello, världen! 🌍" and message.usage.output_tokens == 22
    assert results["wrong"].type == "errored" and "max_tokens" in results["wrong"].error.error.message
    assert results["none"].error.error.type == "not_found_error"
    shown = client.get(f"/v1/batches/{batch.id}").json()  # it is a batch like any other
    assert (shown["endpoint"], shown["request_counts"]["total"]) == ("/v1/messages", 3)
    deleted = claude.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(batch.id)
    assert client.get("/v1/files").json()["data"] == []


def test_a_batch_is_cancelled(runner, claude, client, wait_for):
    runner.chat.hold = asyncio.Event()  # never set
    batch = claude.messages.batches.create(requests=[request(f"r{number}") for number in range(20)])
    wait_for(lambda: bool(runner.chat.submitted), "a request to run")
    early = client.get(f"/v1/messages/batches/{batch.id}/results")
    assert early.status_code == 409 and "has not ended" in early.json()["error"]["message"]
    with pytest.raises(anthropic.APIStatusError, match="cancel it"):
        claude.messages.batches.delete(batch.id)
    cancelled = claude.messages.batches.cancel(batch.id)
    assert cancelled.processing_status == "canceling" and cancelled.cancel_initiated_at is not None
    wait_for(ended(claude, batch.id), "the batch to end")
    counts = claude.messages.batches.retrieve(batch.id).request_counts
    assert counts.canceled and counts.canceled + counts.succeeded == 20
    kinds = [each.result.type for each in claude.messages.batches.results(batch.id)]
    assert kinds.count("canceled") == counts.canceled and len(kinds) == 20


def test_what_ended_before_it_was_read_has_a_result_for_each_request(runner, claude, monkeypatch, wait_for):
    held = asyncio.Event()
    normal = run_module.find_file

    async def late(*args: Any) -> Any:
        await held.wait()
        return await normal(*args)

    monkeypatch.setattr(run_module, "find_file", late)
    asked = [request(f"r{number}") for number in range(300)]
    cancelled = claude.messages.batches.create(requests=asked)
    claude.messages.batches.cancel(cancelled.id)
    runner.loop.call_soon_threadsafe(held.set)
    wait_for(ended(claude, cancelled.id), "the batch to end")
    assert claude.messages.batches.retrieve(cancelled.id).request_counts.canceled == 300
    results = list(claude.messages.batches.results(cancelled.id))
    assert {each.result.type for each in results} == {"canceled"}
    assert [each.custom_id for each in results] == [each["custom_id"] for each in asked]

    async def gone(*args: Any) -> Any:
        raise NotFoundError("There is no file.")

    monkeypatch.setattr(run_module, "find_file", gone)
    failed = claude.messages.batches.create(requests=asked[:5])
    wait_for(ended(claude, failed.id), "the batch to end")
    assert claude.messages.batches.retrieve(failed.id).request_counts.errored == 5
    errors: Any = [each.result for each in claude.messages.batches.results(failed.id)]
    assert [each.error.error.message for each in errors] == ["There is no file."] * 5


def test_the_files_of_a_batch_are_kept_as_long_as_it_is(claude, client, wait_for):
    batch = claude.messages.batches.create(requests=[request("well"), request("wrong", max_tokens=0)])
    wait_for(ended(claude, batch.id), "the batch to end")
    files = [file["id"] for file in client.get("/v1/files").json()["data"]]
    assert len(files) == 3 and list(claude.beta.files.list()) == []
    for file_id in files:
        refused = client.delete(f"/v1/files/{file_id}")
        assert refused.status_code == 409 and batch.id in refused.json()["error"]["message"]
    claude.messages.batches.delete(batch.id)
    assert client.get("/v1/files").json()["data"] == []


def test_batches_are_listed_page_by_page(claude, client, wait_for):
    assert claude.messages.batches.list().data == []
    ids = [claude.messages.batches.create(requests=[request("a")]).id for _ in range(3)]
    for batch_id in ids:
        wait_for(ended(claude, batch_id), "the batch to end")
    assert [batch.id for batch in claude.messages.batches.list(limit=2)] == ids[::-1]
    page = claude.messages.batches.list(limit=1, before_id=ids[0])
    assert [batch.id for batch in page.data] == [ids[1]] and page.has_more
    both = client.get("/v1/messages/batches", params={"after_id": "a", "before_id": "b"})
    assert both.status_code == 400 and both.json()["type"] == "error"


@pytest.mark.parametrize(
    ("requests", "param"),
    [
        ([], "requests"),
        ([request("a"), request("b"), request("a")], "requests[2].custom_id"),
        ([request("a b")], "requests[0].custom_id"),
        ([request("a", system="x" * 1_100_000)], "requests[0]"),
        ([{"custom_id": "a"}], "requests[0].params"),
    ],
)
def test_what_is_no_batch_is_refused_at_once(serve_requests, requests, param):
    before = serve_requests.get("/v1/files").json()
    answer = serve_requests.post("/v1/messages/batches", json={"requests": requests})
    assert answer.status_code == 400 and answer.json()["type"] == "error"
    assert param in answer.json()["error"]["message"]
    assert serve_requests.get("/v1/files").json() == before
