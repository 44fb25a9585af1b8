"""Streams that are stopped while their client's socket is full: what was to be sent is sent, in order and once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kvarn.gateway import answer
from kvarn.gateway.answer import event_stream
from kvarn.gateway.record import new_record
from raw_http import post_of

ITEMS = [b"first ", b"second ", b"third "]


class Socket:
    """Takes messages as the server does: waits for room, then writes. It is full from message number `full_at` on."""

    def __init__(self, full_at: int) -> None:
        self.written: list[dict[str, Any]] = []
        self.full, self.room = asyncio.Event(), asyncio.Event()
        self._full_at = full_at

    async def send(self, message: Any) -> None:
        if len(self.written) >= self._full_at:
            self.full.set()
            await self.room.wait()
        self.written.append(message)

    async def receive(self) -> Any:
        await asyncio.Event().wait()


async def _events() -> AsyncGenerator[bytes, None]:
    for item in ITEMS:
        yield item


@pytest.mark.parametrize("full_at", range(5), ids=["start", *[item.decode().strip() for item in ITEMS], "end"])
async def test_what_a_full_socket_holds_up_when_the_server_stops_is_sent_once_before_the_end(full_at):
    scope: Any = {"type": "http", "headers": [], "path": "/x"}
    new_record(scope)
    socket = Socket(full_at)
    stream = event_stream(_events(), end=b"whole", encode_error=lambda error: b"stopped")
    answering = asyncio.create_task(stream(scope, socket.receive, socket.send))
    await socket.full.wait()
    answering.cancel()
    await asyncio.sleep(0)
    socket.room.set()
    await asyncio.wait({answering})
    assert answering.cancelled()
    start, *bodies = socket.written
    assert start["type"] == "http.response.start"
    sent = ITEMS[: max(1, full_at)]
    assert [body["body"] for body in bodies] == [*sent, b"whole" if full_at == 4 else b"stopped"]
    assert [body["more_body"] for body in bodies] == [True] * len(sent) + [False]


def test_a_slow_reader_of_a_response_misses_no_event_when_the_server_stops(serve, wait_for, monkeypatch):
    monkeypatch.setattr(answer, "_LEAVE_S", 10.0)
    monkeypatch.setattr("kvarn.gateway.server._LAST_BYTES_S", 20.0)
    body = {"model": "tiny", "input": "x", "stream": True, "top_logprobs": 20}
    body["include"] = ["message.output_text.logprobs"]
    with serve(drain_timeout_s=0.2) as server:
        server.chat.step_s, server.chat.answer = 0.001, lambda request, index: [97] * 4000
        slow = server.connect(receive_buffer=4096)
        slow.sendall(post_of("/v1/responses", body, "connection: close"))
        wait_for(lambda: _is_still(server), "the socket to be full")
        received = bytearray()

        def read_when_it_stops() -> None:
            wait_for(lambda: bool(server.chat.aborted), "the server to stop it")
            while part := slow.recv(1 << 20):
                received.extend(part)
                time.sleep(0.002)

        reading = threading.Thread(target=read_when_it_stops)
        reading.start()
    reading.join(20)
    slow.close()
    events = [json.loads(line[6:]) for line in bytes(received).split(b"\n") if line.startswith(b"data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events][-2:] == ["response.failed", "error"]


def _is_still(server: Any) -> bool:
    """Whether the gateway takes nothing from the engine any more."""
    before = server.chat.yields
    threading.Event().wait(0.3)
    return bool(before) and server.chat.yields == before
