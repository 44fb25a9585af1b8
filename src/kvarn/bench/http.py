"""A lean HTTP/1.1 client for streams: asyncio protocol, httptools parser, kept-alive connections.

A load generator must not be what it measures. This client stamps a chunk when its bytes arrive and spends a few
microseconds on it; general clients spend ten times that, on cores the server may share.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import quote, urlsplit

import httptools

from kvarn.clock import SYSTEM_CLOCK

MAX_SESSION = 256
"""Characters of a session's name that are sent."""

OnBody = Callable[[float, int, bytes], None]
"""Called with the time (`Clock.now`), the status and a piece of the body."""


class HttpConnectError(ConnectionError):
    """No connection could be made to the server."""


class HttpBrokenError(ConnectionError):
    """The connection ended before the response did."""


class HttpProtocolError(Exception):
    """The response is not HTTP/1.1."""


class HttpClient:
    """Sends requests to one server; a connection carries one request at a time and is kept for the next."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url`: `http://host:port` or `https://...`; raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a server: write it as http://127.0.0.1:8000")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        host = parts.netloc.rpartition("@")[2]
        self._headers = f"Host: {host}\r\nUser-Agent: kvarn-bench\r\nAccept: text/event-stream, application/json\r\n"
        if api_key:
            self._headers += f"Authorization: Bearer {api_key}\r\n"
        self._idle: list[_Connection] = []

    async def request(self, method: str, path: str, body: bytes, on_body: OnBody, session: str = "") -> int:
        """Send a request and feed the response's body to `on_body` as it comes; returns the status.

        `session` is told in the header `x-session-id`. A kept connection that the server closed meanwhile is replaced
        once, unseen. Cancelling closes the connection.

        Raises:
            HttpConnectError: The server cannot be reached.
            HttpBrokenError: The response ended early.
            HttpProtocolError: The response is not HTTP.
        """
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}"
        if session:
            head += f"x-session-id: {quote(session, safe='/+:')[:MAX_SESSION]}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        message = head.encode() + b"\r\n" + body
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._exchange(connection, message, on_body)
            except HttpBrokenError:
                if connection.response_began:
                    raise
        return await self._exchange(await self._connect(), message, on_body)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise HttpConnectError(f"cannot connect to {self._host}:{self._port}: {error}") from None
        return connection

    async def _exchange(self, connection: _Connection, message: bytes, on_body: OnBody) -> int:
        try:
            status = await connection.exchange(message, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return status


class _Connection(asyncio.Protocol):
    """One TCP (or TLS) connection; also the callbacks of its response parser."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._done: asyncio.Future[int] | None = None
        self._on_body: OnBody | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._now = 0.0
        self._framed = False
        self.response_began = False
        self.reusable = False

    def exchange(self, message: bytes, on_body: OnBody) -> asyncio.Future[int]:
        """Send a request; the future holds the status when the response is complete."""
        self._done = asyncio.get_running_loop().create_future()
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._status, self._framed, self.response_began, self.reusable = 0, False, False, False
        if self._transport is None or self._transport.is_closing():
            self._done.set_exception(HttpBrokenError("the server closed the connection"))
        else:
            self._transport.write(message)
        return self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one only in its ways

    def data_received(self, data: bytes) -> None:
        self._now = SYSTEM_CLOCK.now()
        self.response_began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(HttpProtocolError(f"the answer is not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """An end is regular only where the response said no length."""
        self.reusable = False
        if self._status and not self._framed and exc is None:
            self._succeed()
        else:
            self._fail(HttpBrokenError(f"the connection ended before the answer did{f': {exc}' if exc else ''}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._on_body is not None and self._done is not None and not self._done.done():
            self._on_body(self._now, self._status, body)

    def on_message_complete(self) -> None:
        self.reusable = self._framed and self._parser.should_keep_alive()
        self._succeed()

    def _succeed(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._status)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
