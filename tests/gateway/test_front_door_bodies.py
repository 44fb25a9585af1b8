"""Large bodies, many bodies, bodies that take long to understand: bounded, and beside them others are answered."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import kvarn.gateway.body as body_module
from asking import CHAT, HELLO, chat, code_of
from background_runs import hold
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from raw_http import error_of, flood, head_of, read_answer

JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
WaitFor = Callable[..., None]


def test_others_are_answered_while_a_large_body_is_understood(server, client, monkeypatch):
    normal = body_module.decode_body
    begun, go_on = threading.Event(), threading.Event()

    def slow(body: bytes) -> Any:
        if len(body) > 4096:
            begun.set()
            assert go_on.wait(15), "nobody else was answered meanwhile"
        return normal(body)

    monkeypatch.setattr(body_module, "decode_body", slow)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with server.client() as other:
            answers.append(other.post(CHAT, json=chat(**{"metadata": {"a": "x" * 8000}})))

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(10)
    assert client.post(CHAT, json=chat()).status_code == 200
    assert client.get("/health").status_code == 200
    go_on.set()
    asking.join()
    assert answers[0].status_code == 400 and answers[0].json()["error"]["param"].startswith("metadata")


def test_a_hundred_thousand_tiny_messages_are_refused_unread(serve, monkeypatch):
    monkeypatch.setattr(ChatCompletionRequest, "model_validate", lambda data: pytest.fail("they were looked at"))
    with serve() as server, server.client() as client:
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": ""}] * 100_000})
        answer = client.post(CHAT, content=body, headers=JSON)
        assert code_of(answer) == (400, "request_too_complex")


@pytest.mark.parametrize("announced", [True, False])
def test_ten_megabytes_are_refused_without_being_kept(serve, announced):
    with serve() as server:
        raw = server.connect()
        raw.sendall(
            head_of(
                CHAT,
                "content-type: application/json",
                "content-length: 10485760" if announced else "transfer-encoding: chunked",
            )
        )
        flood(raw, b"x" * 65536 if announced else b"10000\r\n" + b"x" * 65536 + b"\r\n", 10 * MIB)
        assert error_of(read_answer(raw)) == (413, "request_too_large")
        assert server.gateway.held.used == 0
        with server.client() as client:
            too_large = client.post(CHAT, content=b"x" * (5 * MIB), headers=JSON)
            assert code_of(too_large) == (413, "request_too_large")


def test_ten_megabytes_are_taken_where_they_are_allowed(serve):
    with serve(max_body_bytes=20 * MIB) as server, server.client() as client:
        body = chat(metadata={"a": "x" * (10 * MIB)})
        answer = client.post(CHAT, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "metadata.a")


def test_bodies_are_bounded_all_together(serve, wait_for):
    with serve(max_held_bytes=4 * MIB, body_timeout_s=20) as server, server.client() as client:
        budget = server.gateway.held
        slow = [server.connect() for _ in range(4)]
        for raw in slow[:3]:
            raw.sendall(
                head_of(CHAT, "content-type: application/json", "content-length: 1048576") + b" " * (MIB - 10_000)
            )
        wait_for(lambda: budget.used == 3 * (MIB - 10_000), "three bodies to be held")
        slow[3].sendall(head_of(CHAT, "content-type: application/json", "content-length: 1048576") + b" " * 300_000)
        refused = read_answer(slow[3])
        assert error_of(refused) == (429, "over_share") and b"retry-after: 1" in refused
        assert budget.used == 3 * (MIB - 10_000), "the refused one holds nothing"
        assert client.post(CHAT, json=chat()).status_code == 200, "a small one still fits"
        for raw in slow[:3]:
            raw.close()
        wait_for(lambda: budget.used == 0, "their memory to be given back")
        assert client.post(CHAT, content=b" " * 600_000, headers=JSON).status_code == 400


def test_an_organisation_that_holds_all_it_may_leaves_room_for_others(serve, wait_for):
    large = {"role": "assistant", "content": "b", "reasoning_content": "z" * 345_000}
    body = chat(stream=True, messages=[*HELLO, large, *HELLO])
    with (
        serve(max_held_bytes=MIB) as server,
        server.add_tenant("red") as red,
        server.add_tenant("blue") as blue,
    ):
        hold(server)
        with ThreadPoolExecutor(2) as pool:
            streams = [pool.submit(red.post, CHAT, json=body) for _ in range(2)]
            wait_for(lambda: len(server.chat.running) == 2, "two answers to begin")
            assert server.gateway.held.used > 690_000, "a request is held as long as its answer takes"
            refused = red.post(CHAT, json=body)
            assert code_of(refused) == (429, "over_share")
            assert refused.headers["retry-after"] == "1"
            counted = {"model": "tiny", "input": "hi " * 50_000}
            assert blue.post("/v1/responses/input_tokens", json=counted).status_code == 200
            busy = blue.post(CHAT, json=body)
            assert code_of(busy) == (503, "server_busy")
            server.loop.call_soon_threadsafe(server.chat.hold.set)
            assert [stream.result().status_code for stream in streams] == [200, 200]
        wait_for(lambda: server.gateway.held.used == 0, "all to be given back")


def test_a_request_counts_with_what_it_takes_once_understood(serve):
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": ""}] * 19_000}).encode()
    with serve(max_held_bytes=4 * MIB) as server, server.client() as client:
        assert len(body) < MIB
        answer = client.post(CHAT, content=body, headers=JSON)
        assert code_of(answer) == (413, "request_too_large")
        assert "gateway.max_held_bytes" in answer.json()["error"]["message"]


def test_uploads_share_the_memory_for_bodies(serve, wait_for):
    with serve(max_held_bytes=4 * MIB) as server, server.client() as client:
        raw = server.connect()
        form = "content-type: multipart/form-data; boundary=b"
        raw.sendall(head_of("/v1/files", form, f"content-length: {3 * MIB}") + b"--b\r\n")
        wait_for(lambda: server.gateway.held.used == 2 * MIB, "the upload to be held")
        refused = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x" * 2 * MIB)})
        assert code_of(refused) == (429, "over_share")
        raw.close()
        wait_for(lambda: server.gateway.held.used == 0, "all to be given back")


def test_a_compressed_upload_counts_as_what_may_become_of_it(serve, wait_for):
    with serve(max_held_bytes=4 * MIB) as server:
        raw = server.connect()
        form = ("content-type: multipart/form-data; boundary=b", "content-encoding: gzip", "content-length: 5000")
        raw.sendall(head_of("/v1/files", *form) + gzip.compress(b"--b\r\n"))
        wait_for(lambda: server.gateway.held.used == 2 * MIB, "the upload to be held")
        raw.close()
        wait_for(lambda: server.gateway.held.used == 0, "all to be given back")


def test_memory_of_a_body_is_given_back_however_its_request_ends(server, wait_for):
    budget = server.gateway.held
    with server.client() as client:
        client.post(CHAT, json=chat())
        client.post(CHAT, json=chat(stream=True))
        client.post(CHAT, content=b"{", headers=JSON)
        client.post(CHAT, json=chat(model="nope"))
    raw = server.connect()
    raw.sendall(head_of(CHAT, "content-type: application/json", "content-length: 100") + b"{")
    wait_for(lambda: budget.used > 0, "the body to be held")
    raw.close()
    wait_for(lambda: budget.used == 0, "all to be given back")
