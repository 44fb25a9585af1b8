"""Batches through HTTP and the official client: every request answered once, in the output or in the error file."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from batch_jobs import CHAT, await_end, chat_line, jsonl, outputs, read_file, send
from fake_replica import answer_text
from kvarn.batches.worker import BatchWorker
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.store.owner import Principal, Scopes
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.wire.messages import RefusalReason


def test_the_official_client_runs_a_batch(runner, wait_for):
    runner.chat.answer = lambda request, index: answer_text(f"to {len(request.prompt_token_ids)} tokens")
    with runner.sdk() as sdk:
        file = sdk.files.create(file=jsonl([chat_line(i) for i in range(50)]), purpose="batch")
        made = sdk.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
            metadata={"job": "nightly\0"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert made.status == "validating" and made.metadata == {"job": "nightly\0"} and made.completion_window == "24h"
        wait_for(lambda: sdk.batches.retrieve(made.id).status == "completed", "the batch to be completed", seconds=20)
        done = sdk.batches.retrieve(made.id)
        assert done.request_counts is not None and done.output_file_id is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (50, 50, 0)
        assert done.in_progress_at and done.finalizing_at and done.completed_at and done.error_file_id is None
        assert done.usage is not None and done.usage.input_tokens > 0 and done.usage.output_tokens > 0
        lines = [json.loads(line) for line in sdk.files.content(done.output_file_id).text.splitlines()]
        assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(50)]
        assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in lines)
        assert lines[0]["response"]["body"]["choices"][0]["message"]["content"].startswith("to ")
        output = sdk.files.retrieve(done.output_file_id)
        assert output.purpose == "batch_output" and output.expires_at == output.created_at + 3600
        assert [batch.id for batch in sdk.batches.list(limit=1)] == [made.id]


def test_lines_run_at_the_lowest_tier_for_the_tenant_that_made_them(runner, wait_for):
    with runner.add_tenant("red") as red:
        await_end(red, send(red, [chat_line(i, priority=-5) for i in range(3)]), wait_for)
        owner = runner.authenticator.principals["red"]
        assert {submit.tenant for submit in runner.chat.submitted} == {owner.organization_id}
        assert {submit.priority for submit in runner.chat.submitted} == {10}
        assert all(submit.cache_salt.startswith(f"{owner.cache_salt}/") for submit in runner.chat.submitted)


def test_what_cannot_be_answered_goes_to_the_error_file(runner, wait_for):
    lines = [chat_line(0), chat_line(1, temperature=9), chat_line(2, model="nobody"), chat_line(3, stream=True)]
    with runner.client() as client:
        batch = await_end(client, send(client, lines), wait_for)
        assert batch["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
        errors = {line["custom_id"]: line["response"] for line in read_file(client, batch, "error_file_id")}
        assert {name: response["status_code"] for name, response in errors.items()} == {"r1": 400, "r2": 404, "r3": 400}
        assert errors["r1"]["body"]["error"]["param"] == "temperature"
        assert [line["custom_id"] for line in read_file(client, batch, "output_file_id")] == ["r0"]
        assert "model" not in batch


@pytest.mark.parametrize(
    ("endpoint", "body", "object_name"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": "x"}, "text_completion"),
        ("/v1/embeddings", {"model": "vec", "input": "x"}, "list"),
        ("/v1/responses", {"model": "tiny", "input": "x"}, "response"),
        ("/v1/moderations", {"input": "a harmless text"}, None),
    ],
)
def test_other_operations_run_too(runner, wait_for, endpoint, body, object_name):
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    with runner.client() as client:
        batch = await_end(client, send(client, [line], endpoint), wait_for)
        answer = outputs(client, batch)["a"]["response"]
        assert answer["status_code"] == 200 and answer["body"].get("object") == object_name
        assert batch["model"] == body.get("model", "kvarn-moderation-1")


def test_an_input_that_is_no_list_of_requests_fails_with_line_numbers(runner, wait_for):
    wrong = [chat_line(0), b"{not json", b"", chat_line(0), {**chat_line(3), "method": "GET"}]
    with runner.client() as client:
        batch = await_end(client, send(client, wrong), wait_for, "failed")
        faults = {fault["line"]: fault["code"] for fault in batch["errors"]["data"]}
        assert faults == {2: "invalid_json_line", 4: "duplicate_custom_id", 5: "invalid_method"}
        assert "output_file_id" not in batch and batch["failed_at"]
        empty = await_end(client, send(client, [b"", b""]), wait_for, "failed")
        assert empty["errors"]["data"][0]["code"] == "empty_file"
    assert runner.chat.submitted == []


def test_a_cancelled_batch_keeps_what_was_answered(runner, wait_for):
    runner.chat.step_s = 0.02
    with runner.client() as client:
        batch = send(client, [chat_line(i) for i in range(200)])

        def answered_some() -> bool:
            return client.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"] >= 10

        wait_for(answered_some, "some lines to be answered")
        assert client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
        await_end(client, batch, wait_for, "cancelled")
        assert not runner.chat.running and len(runner.chat.submitted) < 200
        assert len(outputs(client, batch)) == 200
        answered = read_file(client, batch, "output_file_id")
        assert len(answered) == batch["request_counts"]["completed"] >= 10
        codes = {line["error"]["code"] for line in read_file(client, batch, "error_file_id")}
        assert codes == {"batch_cancelled"} and batch["cancelling_at"] <= batch["cancelled_at"]
        again = client.post(f"/v1/batches/{batch['id']}/cancel")
        assert again.status_code == 409 and "cancelled" in again.json()["error"]["message"]


@pytest.mark.parametrize("lines", [[chat_line(0)], [b"{not json"]])
def test_a_batch_that_is_cancelled_while_it_is_checked_has_not_failed(runner, wait_for, monkeypatch, lines):
    reading, go_on = threading.Event(), threading.Event()

    async def read_slowly(*args: Any) -> AsyncGenerator[bytes, None]:
        reading.set()
        await asyncio.to_thread(go_on.wait, 20)
        async with aclosing(read_content(*args)) as chunks:
            async for chunk in chunks:
                yield chunk

    looks, refresh = list[str](), BatchWorker.refresh

    async def noted(worker: BatchWorker, job: Any) -> None:
        await refresh(worker, job)
        looks.append(job.id)

    monkeypatch.setattr(BatchWorker, "refresh", noted)
    monkeypatch.setattr("kvarn.batches.run.read_content", read_slowly)
    with runner.client() as client:
        batch = send(client, lines)
        assert reading.wait(10)
        assert client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
        seen = len(looks)
        wait_for(lambda: len(looks) > seen + 1, "looks at the batch")
        go_on.set()
        await_end(client, batch, wait_for, "cancelled")
        assert "errors" not in batch and "failed_at" not in batch and batch["request_counts"]["total"] == 0
    assert runner.chat.submitted == []


def test_a_batch_past_its_window_expires(runner, wait_for, monkeypatch):
    runner.chat.hold = asyncio.Event()  # never set
    runner.chat.answer = lambda request, index: answer_text("late")
    with runner.client() as client:
        batch = send(client, [chat_line(i) for i in range(20)])
        wait_for(lambda: len(runner.chat.running) > 1, "lines to run")
        monkeypatch.setattr(runner.gateway.store, "now", lambda: batch["expires_at"])
        await_end(client, batch, wait_for, "expired")
        assert {line["error"]["code"] for line in outputs(client, batch).values()} == {"batch_expired"}
        assert len(outputs(client, batch)) == 20 and batch["expired_at"] == batch["expires_at"]
        assert not runner.chat.running


def test_a_refused_line_is_tried_again(runner, wait_for, monkeypatch):
    told: list[tuple[str, int, str]] = []
    traces = runner.gateway.control.traces
    reply = attrgetter("reply.status", "reply.error_code")
    monkeypatch.setattr(traces, "ended", lambda record, name, *_: told.append((name, *reply(record))))
    runner.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "full", retry_after_s=0.2)
    with runner.client() as client:
        batch = send(client, [chat_line(i) for i in range(5)])
        wait_for(lambda: bool(runner.chat.submitted), "a line to be refused")
        runner.chat.refusal = None
        await_end(client, batch, wait_for)
        assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
        assert 'kvarn_batch_lines_total{outcome="retried"}' in client.get("/metrics").text
    lines = [each for each in told if each[0] == "batch line"]
    assert set(lines) == {("batch line", 429, "queue_full"), ("batch line", 200, "")}
    assert sum(status == 200 for _, status, _ in lines) == 5


def test_a_tenant_finds_nothing_of_another(runner, wait_for):
    with runner.add_tenant("red") as red, runner.add_tenant("blue") as blue:
        batch = await_end(red, send(red, [chat_line(0)]), wait_for)
        for method, path in (("GET", batch["id"]), ("POST", f"{batch['id']}/cancel")):
            assert blue.request(method, f"/v1/batches/{path}").status_code == 404
        assert blue.get("/v1/batches").json()["data"] == []
        assert blue.get("/v1/batches", params={"after": batch["id"]}).status_code == 404
        assert blue.get(f"/v1/files/{batch['output_file_id']}").status_code == 404
        stolen = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        answer = blue.post("/v1/batches", json=stolen)
        assert answer.status_code == 404 and answer.json()["error"]["param"] == "input_file_id"


def make_key(runner: Any, tenant: str, **asked: Any) -> str:
    """A key of a tenant, which its requests bear from then on; its id."""
    principal = runner.authenticator.principals[tenant]

    async def make() -> str:
        async with audited_change(runner.gateway.store, Actor("a test")) as change:
            key, _ = await add_key(change, *_ids(principal), KeyRequest(name="k", **asked))
        return key.id

    key_id: str = runner.do(make())
    runner.authenticator.principals[tenant] = replace(principal, key_id=key_id, scopes=asked.get("scopes", Scopes()))
    return key_id


def _ids(principal: Principal) -> tuple[str, str]:
    return principal.organization_id, principal.project_id


def test_a_revoked_key_stops_its_batch(runner, wait_for):
    runner.chat.step_s = 0.02
    with runner.add_tenant("red") as red:
        key_id = make_key(runner, "red")
        batch = send(red, [chat_line(i) for i in range(200)])
        wait_for(lambda: len(runner.chat.submitted) > 10, "some lines to run")

        async def revoke() -> None:
            async with audited_change(runner.gateway.store, Actor("a test")) as change:
                await revoke_key(change, runner.authenticator.principals["red"].organization_id, key_id)

        runner.do(revoke())
        await_end(red, batch, wait_for, "cancelled")
        assert not runner.chat.running and len(runner.chat.submitted) < 200
        assert batch["errors"]["data"][0]["code"] == "invalid_api_key" and len(outputs(red, batch)) == 200


def test_lines_may_do_no_more_than_the_key_that_made_the_batch(runner, wait_for):
    with runner.add_tenant("red") as red:
        make_key(runner, "red", scopes=Scopes(models=("vec",), endpoints=("/v1/batches", "/v1/files", "/v1/chat")))
        batch = await_end(red, send(red, [chat_line(0)]), wait_for)
        (refused,) = read_file(red, batch, "error_file_id")
        assert refused["response"]["status_code"] == 403
        body = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        assert red.post("/v1/batches", json=body).status_code == 403
    assert runner.chat.submitted == []


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint", "unsupported_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"input_file_id": "file-\x00"}, "input_file_id", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
            "invalid_value",
        ),
        ({"priority": 1}, "priority", "unknown_parameter"),
    ],
)
def test_a_batch_that_cannot_be_run_is_refused_by_name(client, change, param, code):
    body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **change}
    answer = client.post("/v1/batches", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_the_input_must_have_been_uploaded_for_a_batch(client):
    file = client.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a", b"{}")}).json()
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input_file_id"
