"""Responses whose end the database does not take: nobody waits for it without end, and a whole answer stays one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import code_of
from background_runs import queue, state
from fake_replica import answer_text
from kvarn.config.platform import ResponsesConfig, StoreConfig
from kvarn.responses import retrieval
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.conversations import responses
from read_only import SqliteSwitch

HELLO = {"model": "tiny", "input": "Hej"}


@pytest.fixture
def server(serve: Any, tmp_path: Path) -> Iterator[Any]:
    """A gateway on a database of its own."""

    config = {
        "store": StoreConfig(url=f"sqlite:///{tmp_path}/kvarn.db"),
        "responses": ResponsesConfig(lease_s=30, wait_s=600),
        "data_dir": str(tmp_path / "data"),
    }
    with serve(config=config, drain_timeout_s=0.5) as server:
        yield server


@pytest.fixture
def writing(server: Any, wait_for: Any) -> str:
    """A background response that is being written."""
    server.chat.step_s, server.chat.answer = 0.02, lambda request, index: answer_text("abc" * 3000)
    response_id = queue(server)
    wait_for(lambda: state(server, response_id)["status"] == "in_progress", "the response to begin")
    return response_id


def cancel(server: Any, response_id: str) -> Any:
    with server.client() as client:
        return client.post(f"/v1/responses/{response_id}/cancel")


def test_a_cancellation_that_cannot_be_written_is_told_in_time_and_holds_all_the_same(
    server, writing, wait_for, monkeypatch
):
    monkeypatch.setattr(retrieval, "_CANCEL_TIMEOUT_S", 0.2)
    switch = SqliteSwitch(server.gateway.store)
    switch.is_on = True
    for _ in range(2):
        answer = cancel(server, writing)
        assert code_of(answer) == (503, "end_not_written")
        assert int(answer.headers["retry-after"]) >= 1
    wait_for(lambda: len(server.chat.aborted) == 1, "the engine's request to be aborted")
    switch.is_on = False
    wait_for(lambda: state(server, writing)["status"] == "cancelled", "the cancellation to be written")
    assert state(server, writing)["output"], "what was written stays"
    assert cancel(server, writing).json() == state(server, writing)


def test_a_gateway_stops_while_the_end_of_a_cancelled_response_cannot_be_written(server, writing, monkeypatch):
    monkeypatch.setattr(retrieval, "_CANCEL_TIMEOUT_S", 0.2)
    SqliteSwitch(server.gateway.store).is_on = True
    assert cancel(server, writing).status_code == 503
    server.do(server.gateway.responses.stop())  # raises where it takes long


def test_a_response_that_has_ended_is_kept_where_the_gateway_stops_meanwhile(open_gateway, wait_for, monkeypatch):
    finish, refused = responses.finish_background, threading.Event()

    async def refuse_once(*asked: Any) -> bool:
        if not refused.is_set():
            refused.set()
            raise StoreAwayError("for a moment")
        return await finish(*asked)

    monkeypatch.setattr(responses, "finish_background", refuse_once)
    with open_gateway() as server:
        response_id = queue(server)
        wait_for(refused.is_set, "its end to be written")
    with open_gateway() as other:
        assert state(other, response_id)["status"] == "completed"
        assert not other.chat.submitted


@pytest.mark.parametrize("failures", [1, 2])
def test_a_whole_answer_outside_conversations_is_given_whatever_the_database_says_of_it(server, monkeypatch, failures):
    fail_to_keep(monkeypatch, "keep_response", failures)
    with server.client() as client:
        answer = client.post("/v1/responses", json=HELLO)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "completed" and answer.json()["store"] is (failures == 1)
        found = client.get(f"/v1/responses/{answer.json()['id']}")
        assert found.json() == answer.json() if failures == 1 else found.status_code == 404


def test_a_whole_answer_in_the_background_outlasts_an_error_of_the_database(server, wait_for, monkeypatch):
    fail_to_keep(monkeypatch, "finish_background", 1)
    response_id = queue(server)
    wait_for(lambda: state(server, response_id)["status"] == "completed", "the response to be kept")
    assert len(server.chat.submitted) == 1


def test_a_conversation_does_not_go_on_from_an_answer_that_the_database_refuses(server, monkeypatch):
    fail_to_keep(monkeypatch, "keep_response", 1)
    with server.client() as client:
        conversation = client.post("/v1/conversations", json={}).json()["id"]
        answer = client.post("/v1/responses", json={**HELLO, "conversation": conversation})
        assert code_of(answer) == (503, "conversation_not_kept")
        assert client.get(f"/v1/conversations/{conversation}/items").json()["data"] == []


def fail_to_keep(monkeypatch: pytest.MonkeyPatch, name: str, failures: int) -> None:
    """Has the database fail in a way of its own, so many times."""
    real, left = getattr(responses, name), [failures]

    async def keep(*asked: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ValueError("a deadlock was found")
        return await real(*asked, **options)

    monkeypatch.setattr(responses, name, keep)
