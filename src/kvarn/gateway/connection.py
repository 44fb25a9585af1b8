"""One client's connection: uvicorn's protocol, with bounds on how long it may wait and how much it may say.

uvicorn bounds the time between two requests. A client can hold a connection in other ways: by sending nothing at all,
headers byte by byte or without end, a body that nobody reads any more, or by not reading its answer. Each of these has
one timer here, and what is over is closed, so that a connection always either works or is on its way out.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvarn.wire.openai.errors import ApiError

LINGER_S = 2.0
"""Seconds that the rest of a body may still arrive after its answer."""

_log = logging.getLogger("kvarn.gateway")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of every connection; see the settings of these names under `gateway`."""

    max_connections: int
    idle_timeout_s: float
    header_timeout_s: float
    write_timeout_s: float
    max_header_bytes: int
    max_headers: int


class _Wait(Enum):
    """What a connection waits for from its client."""

    REQUEST = "request"
    HEADERS = "headers"
    REST_OF_BODY = "rest of body"


class _HeadRefusedError(Exception):
    """Raised inside the parser, which then stops."""


class Connection(HttpToolsProtocol):
    """A connection that does not outlive its use.

    Args:
        limits: Its bounds.
        arguments: What uvicorn gives to a protocol.
    """

    def __init__(self, limits: ConnectionLimits, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._waits_for: _Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        self._raw_head_bytes = 0
        self._refusal: ApiError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came; one too many is sent away before it is read."""
        if len(self.connections) >= self._limits.max_connections:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop(self._timer)
        self._stop(self._stalled)
        self._timer = self._stalled = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request, or of several."""
        was_in_head = self._in_head
        super().data_received(data)
        if was_in_head and self._in_head and self._refusal is None:
            self._raw_head_bytes += len(data)
            if self._raw_head_bytes > self._limits.max_header_bytes:
                self._refuse(self._head_too_large())
        self._watch()

    # The parser's callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head, self._in_body = True, True
        self._head_bytes = self._raw_head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; the parser gives what follows a chunked body in the same way."""
        self._count(len(name) + len(value))
        if len(self.headers) >= self._limits.max_headers:
            self._refusal = _refused_head(f"more than {self._limits.max_headers} headers (gateway.max_headers)")
            raise _HeadRefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request begins to be answered."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of the request is here."""
        self._in_body = False
        super().on_message_complete()

    # Answers -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer is sent, or lies in the socket's buffer."""
        super().on_response_complete()
        self._unset_keepalive_if_required()  # this class keeps the time
        if self.pipeline and not self.transport.is_closing():
            self.flow.pause_reading()  # else each answer would let in as many requests as fit a buffer
        self._watch()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._stop(self._stalled)
        self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or too much of it, and close."""
        self._refuse(self._refusal or ApiError(400, f"{msg}", code="invalid_http"))

    # Time --------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Give the client time for what is due next; what it already waits for keeps its deadline."""
        if self.transport.is_closing():
            self._stop(self._timer)
            self._timer = self._waits_for = None
            if self.transport.get_write_buffer_size():
                self._expect_reading()
            return
        waits_for = self._next()
        if waits_for is self._waits_for:
            return
        self._stop(self._timer)
        self._waits_for, self._timer = waits_for, None
        if waits_for is not None:
            self._timer = self.loop.call_later(self._seconds(waits_for), self._give_up)

    def _next(self) -> _Wait | None:
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        if self._in_head:
            return _Wait.HEADERS
        return _Wait.REST_OF_BODY if self._in_body else _Wait.REQUEST

    def _seconds(self, waits_for: _Wait) -> float:
        if waits_for is _Wait.REQUEST:
            return self._limits.idle_timeout_s
        return self._limits.header_timeout_s if waits_for is _Wait.HEADERS else LINGER_S

    def _give_up(self) -> None:
        if self._waits_for is _Wait.HEADERS:
            why = f"The request's headers did not arrive within {self._limits.header_timeout_s:g} s."
            self._refuse(ApiError(408, why, code="request_timeout"))
        else:
            self.transport.close()
        self._watch()

    def _expect_reading(self) -> None:
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._limits.write_timeout_s, self._cut_off)

    def _cut_off(self) -> None:
        _log.info("a client did not read its answer", extra={"seconds": self._limits.write_timeout_s})
        self.transport.abort()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()

    # Refusals ----------------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_header_bytes:
            self._refusal = self._head_too_large()
            raise _HeadRefusedError

    def _head_too_large(self) -> ApiError:
        return _refused_head(f"more than {self._limits.max_header_bytes} bytes (gateway.max_header_bytes)")

    def _refuse(self, error: ApiError) -> None:
        """Say why, unless an answer is under way that this would spoil, and close."""
        self._refusal = error
        if self.cycle is None or self.cycle.response_complete:
            body = msgspec.json.encode(error.body())
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def _refused_head(what: str) -> ApiError:
    return ApiError(431, f"The request's target and headers are {what}.", code="headers_too_large")
