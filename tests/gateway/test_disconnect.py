"""Clients that leave, clients that stall, clients that read slowly: raw sockets against the listening gateway."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from asking import CHAT, chat, metric
from raw_http import post_of, read_all, read_answer

WaitFor = Callable[..., None]


def leave(raw: socket.socket, *, reset: bool) -> None:
    """Close orderly, or with a reset as a crashed client's kernel does."""
    if reset:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_is_aborted(server, wait_for, stream, reset):
    server.chat.hold = asyncio.Event()  # never set: the request waits in the queue
    raw = server.connect()
    raw.sendall(post_of(CHAT, chat(stream=stream)))
    wait_for(lambda: server.chat.running, "the request to reach the engine")
    leave(raw, reset=reset)
    wait_for(lambda: server.chat.aborted and not server.chat.running, "the abort")


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_in_mid_answer_is_aborted(server, wait_for, stream, reset, n):
    server.chat.step_s = 0.01
    server.chat.answer = lambda request, index: [120] * 400
    raw = server.connect()
    raw.sendall(post_of(CHAT, chat(stream=stream, n=n)))
    wait_for(lambda: server.chat.yields > 5, "tokens to flow")
    leave(raw, reset=reset)
    wait_for(lambda: server.chat.aborted and not server.chat.running, "the abort")
    assert server.chat.finished == []


def test_leaving_aborts_every_prompt_of_a_completion(server, wait_for):
    server.chat.hold = asyncio.Event()
    raw = server.connect()
    raw.sendall(post_of("/v1/completions", {"model": "tiny", "prompt": ["a", "b", "c"]}))
    wait_for(lambda: len(server.chat.running) == 3, "all prompts to reach the engine")
    leave(raw, reset=False)
    wait_for(lambda: len(server.chat.aborted) == 3, "all of them to be aborted")


def test_a_client_that_leaves_is_counted(server, wait_for, client):
    def count() -> float:
        return metric(client, "kvarn_disconnects_total", endpoint=CHAT, model="tiny")

    before = count()
    server.chat.hold = asyncio.Event()
    raw = server.connect()
    raw.sendall(post_of(CHAT, chat()))
    wait_for(lambda: server.chat.running, "the request to reach the engine")
    raw.close()
    wait_for(lambda: count() == before + 1, "the disconnect to be counted")


def test_a_body_that_stalls_gets_408(server):
    raw = server.connect()
    raw.sendall(post_of(CHAT, chat())[:-10])
    answer = read_answer(raw)
    raw.close()
    assert answer.startswith(b"HTTP/1.1 408") and b'"code":"request_timeout"' in answer


def test_a_slow_reader_slows_nobody_and_loses_nothing(server, client, wait_for):
    total = 20_000
    server.widen(50_000)
    server.chat.answer = lambda request, index: [120] * total
    server.chat.tokens_per_step = 10
    slow = server.connect(receive_buffer=4096)
    slow.sendall(post_of(CHAT, chat(stream=True, logprobs=True, ignore_eos=True)))
    wait_for(lambda: server.chat.yields > 3, "the slow client's stream to begin")
    stalled = _until_still(lambda: server.chat.yields)
    assert stalled < total / 20, "the slow client was sent everything: nothing holds it back"

    server.chat.answer = lambda request, index: [121] * 50
    assert client.post(CHAT, json=chat(stream=True)).text.endswith("data: [DONE]\n\n")
    assert _until_still(lambda: server.chat.yields) < stalled + 60, "nothing more is taken for the slow client"

    received = _read_all(slow)
    events = [json.loads(line[6:]) for line in received.split("\n\n") if line.startswith("data: {")]
    assert sum(len(event["choices"][0]["delta"].get("content") or "") for event in events) == total
    merged = max(len(event["choices"][0]["delta"].get("content") or "") for event in events)
    assert 10 < merged <= 64, "what came while the reader slept comes in chunks of a bounded size"


def _until_still(read: Callable[[], int]) -> int:
    """Wait until a count stays the same for a while; returns it."""
    last, since = read(), time.monotonic()
    while time.monotonic() - since < 1.0:
        time.sleep(0.02)
        now = read()
        if now != last:
            last, since = now, time.monotonic()
    return last


def _read_all(raw: socket.socket) -> str:
    """Read a chunked answer to its end and undo the chunking."""
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        part = raw.recv(1 << 20)
        assert part, "the connection closed before the end"
        data += part
    raw.close()
    body = data.partition(b"\r\n\r\n")[2]
    text = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return text.decode()
        text += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


def test_what_cannot_finish_before_the_server_stops_gets_a_typed_error(serve, wait_for):
    def prepare(server: Any) -> None:
        server.chat.step_s = 0.01
        server.chat.answer = lambda request, index: [120] * 400
        normal = server.chat.generate
        server.chat.generate = lambda request, hold: (
            normal(request, hold) if request.priority == 0 else _never(server, request)
        )

    with serve(prepare, drain_timeout_s=0.1) as server:
        streaming, waiting = server.connect(), server.connect()
        streaming.sendall(post_of(CHAT, chat(stream=True)))
        waiting.sendall(post_of(CHAT, chat(priority=1)))
        wait_for(lambda: server.chat.yields > 5 and "waits" in server.chat.finished, "both to be under way")
    streamed, refused = read_all(streaming), read_all(waiting)
    assert b'"code":"draining"' in streamed and b"[DONE]" not in streamed and streamed.endswith(b"0\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 503 ") and b"retry-after: " in refused and b'"code":"draining"' in refused


async def _never(server: Any, request: Any) -> Any:
    """A request that waits in the queue for ever."""
    server.chat.finished.append("waits")
    await asyncio.Event().wait()
    yield request
