"""A streaming server that does exactly what a test says: known delays, several tokens in a chunk, lies, breaks."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Behaviour:
    first_s: float = 0.0
    gap_s: float = 0.0
    tokens_per_chunk: int = 1
    usage: bool = True
    cached_tokens: int | None = 0
    status: int = 200
    fail_every: int = 0
    """Every n-th request gets `status`; 0 means all do."""
    break_after: int | None = None
    """Drop the connection after so many chunks."""
    events: list[str] | None = None
    """Send these `data:` payloads and nothing else."""
    close_idle: bool = False
    """Close the connection behind each response without having said so."""


@dataclass
class ScriptedServer:
    behaviour: Behaviour = field(default_factory=Behaviour)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    connections: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.headers.append(head)
                if head.startswith("GET"):
                    self._plain(writer, 200, {"data": [{"id": "scripted", "object": "model"}]})
                    continue
                length = next(
                    int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length")
                )
                body = json.loads(await reader.readexactly(length))
                self.arrived.append(time.perf_counter())
                self.bodies.append(body)
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                try:
                    await self._answer(body, "chat" in head.split()[1], writer)
                finally:
                    self.running -= 1
                if self.behaviour.close_idle:
                    break
        writer.close()

    async def _answer(self, body: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        does = self.behaviour
        if does.status != 200 and (not does.fail_every or len(self.bodies) % does.fail_every == 0):
            self._plain(writer, does.status, {"error": {"message": "slow down", "type": "rate_limit"}})
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if does.events is not None:
            for payload in does.events:
                self._send(writer, payload)
        else:
            await self._tokens(body, chat, writer)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _tokens(self, body: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        does, left, sent = self.behaviour, body["max_tokens"], 0
        if chat:
            self._send(writer, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(does.first_s)
        while left > 0:
            if does.break_after == sent:
                await writer.drain()
                raise ConnectionResetError
            now = min(left, does.tokens_per_chunk)
            left -= now
            reason = None if left else "length"
            said: dict[str, Any] = {"delta": {"content": "abcd" * now}} if chat else {"text": "abcd" * now}
            self._send(writer, json.dumps({"choices": [{"index": 0, "finish_reason": reason, **said}]}))
            sent += 1
            if left:
                await asyncio.sleep(does.gap_s)
        if does.usage:
            prompt = len(body["prompt"]) if "prompt" in body else 7
            usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
            if does.cached_tokens is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": does.cached_tokens}
            self._send(writer, json.dumps({"choices": [], "usage": usage}))
        self._send(writer, "[DONE]")

    @staticmethod
    def _send(writer: asyncio.StreamWriter, payload: str) -> None:
        data = f"data: {payload}\n\n".encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    @staticmethod
    def _plain(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], ScriptedServer]]:
    """Start scripted servers, each in a thread of its own; they end with the test."""
    stops: list[Callable[[], None]] = []

    def start(behaviour: Behaviour) -> ScriptedServer:
        scripted = ScriptedServer(behaviour)
        ready = threading.Event()
        stops_serving: list[Callable[[], None]] = []

        async def main() -> None:
            server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, limit=1 << 24)
            scripted.port = server.sockets[0].getsockname()[1]
            stopped = asyncio.Event()
            loop = asyncio.get_running_loop()
            stops_serving.append(lambda: loop.call_soon_threadsafe(stopped.set))
            ready.set()
            await stopped.wait()
            server.close()

        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        assert ready.wait(10)

        def stop() -> None:
            stops_serving[0]()
            thread.join(10)

        stops.append(stop)
        return scripted

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def behaviour() -> type[Behaviour]:
    return Behaviour
