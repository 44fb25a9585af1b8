"""A server that answers each request with the bytes that a test scripted, however wrong they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Script = Callable[["Asked"], AsyncIterator[bytes]]


@dataclass
class Asked:
    head: str
    """Request line and headers."""
    body: bytes

    def header(self, name: str) -> str | None:
        lines = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return next((value.strip() for key, _, value in lines if key.lower() == name), None)


@dataclass
class ScriptedServer:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client left before its answer's end."""

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}"


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncGenerator[ScriptedServer, None]:
    server = ScriptedServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n")
            asked = Asked(head, b"")
            if (length := asked.header("content-length")) is not None:
                asked.body = await reader.readexactly(int(length))
            server.asked.append(asked)
            try:
                async for part in script(asked):
                    writer.write(part)
                    await writer.drain()
            except ConnectionError:
                server.left.set()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def always(body: bytes, *headers: str, status: str = "200 OK") -> Script:
    async def script(asked: Asked) -> AsyncIterator[bytes]:
        yield answer(body, *headers, status=status)

    return script
