"""One client's connection: uvicorn's protocol, with bounds on how long it may wait and how much it may say.

uvicorn bounds the time between two requests. A client can hold a connection in other ways: by sending nothing at all,
headers byte by byte or without end, a body that nobody reads any more, or by not reading its answer. Each of these has
one timer here, and what is over is closed, so that a connection always either works or is on its way out.

Nor does a connection hold more memory than it must. What a request says besides its body is bounded as a whole: its
target and headers, then the chunk sizes, extensions and trailers around a chunked body, some of which the parser would
gather without end. And requests sent ahead of their turn wait as the bytes they came as.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvarn.gateway.arrival import RECEIVED, arrived_at
from kvarn.wire.openai.errors import ApiError

LINGER_S = 2.0
"""Seconds that the rest of a body may still arrive after its answer, and that a refused client has to read why."""

_PIECE_BYTES = 4096
"""Bytes parsed at once. The shortest request has 18, and costs kilobytes and 16 us once it is parsed: of a whole read
(256 KiB) they would hold up the event loop for a quarter of a second."""
MOST_REFUSED = 256
"""Connections that are one too many and have not read why yet; more are cut."""
_FRAMING_PER_BODY_BYTE = 16
"""What a byte of a chunked body may cost besides: one in a chunk of its own has five bytes around it."""
_ANNOUNCE_BODY = (b"content-length", b"transfer-encoding")
"""The parser takes what follows a request for an upgrade for a request of its own: its body would be run as one."""

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
    refused: set[Connection] = field(default_factory=set)
    """One too many, and not closed yet."""


class _Wait(Enum):
    """What a connection waits for from its client."""

    REQUEST = "request"
    HEADERS = "headers"
    REST_OF_BODY = "rest of body"


class _RefusedError(Exception):
    """Raised inside the parser, which then stops."""


class Connection(HttpToolsProtocol):
    """A connection that does not outlive its use.

    Args:
        limits: Its bounds.
        arguments: What uvicorn gives to a protocol.
    """

    def __init__(self, limits: ConnectionLimits, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.socket: socket.socket | None = None
        """The connection's own, where it is known."""
        self._limits = limits
        self._waits_for: _Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._in_head = False
        self._in_body = False
        self._field_bytes = 0
        self._body_bytes = 0
        self._besides_body = 0
        self._turned = False
        self._unparsed = memoryview(b"")
        self._answered_at = 0.0
        self._refusal: ApiError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came; one too many is told so before it is read."""
        too_many = len(self.connections) >= self._limits.max_connections
        if too_many and len(self._limits.refused) >= MOST_REFUSED:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        if too_many:
            self.connections.discard(self)  # it takes no place while it reads why
            self._limits.refused.add(self)
            why = f"{self._limits.max_connections} connections are open (gateway.max_connections). Try again."
            self._refuse(ApiError(503, why, type="server_error", code="server_busy", headers={"retry-after": "1"}))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop(self._timer)
        self._stop(self._stalled)
        self._timer = self._stalled = None
        self._unparsed = memoryview(b"")
        self._limits.refused.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request, or of several."""
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()
        if self.has_enough:
            self.flow.pause_reading()
        self._watch()

    @property
    def has_enough(self) -> bool:
        """Whether nothing more is to be read: bytes wait for the answers to the requests before them, or no more are
        wanted."""
        return bool(self._unparsed) or self._refusal is not None

    def _parse(self) -> None:
        """Parse what has come, until a request has to wait for the answer to another."""
        while self._unparsed and not self.pipeline and self._refusal is None and not self.transport.is_closing():
            piece, self._unparsed = self._unparsed[:_PIECE_BYTES], self._unparsed[_PIECE_BYTES:]
            self._feed(piece)

    def _feed(self, piece: memoryview) -> None:
        self._turned, body_before = False, self._body_bytes
        super().data_received(piece)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._turned or self._refusal is not None:
            return  # which of these bytes belong to what nobody says; they are few
        self._besides_body += len(piece) - (self._body_bytes - body_before)
        allowed = 0 if self._in_head else self._body_bytes * _FRAMING_PER_BODY_BYTE
        if self._besides_body > self._limits.max_header_bytes + allowed:
            self._refuse(self._too_large())

    # The parser's callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._turn(in_head=True, in_body=True)
        self._field_bytes = self._body_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: what follows a chunked body comes in the same way.

        Trailers are dropped. Nobody reads them here, and as headers they would say who asks for what after a proxy
        has looked.
        """
        self._count(len(name) + len(value))
        if not self._in_head:
            return
        if len(self.headers) >= self._limits.max_headers:
            self._refusal = _refused_head(f"more than {self._limits.max_headers} headers (gateway.max_headers)")
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request begins to be answered."""
        upgrade = self.parser.should_upgrade()
        if upgrade and any(name in _ANNOUNCE_BODY for name, _ in self.headers):
            why = "The server speaks HTTP/1.1 only: send a request that has a body without the header 'upgrade'."
            self._refusal = ApiError(400, why, code="upgrade_not_supported")
            raise _RefusedError
        self._turn(in_head=False, in_body=True)
        super().on_headers_complete()
        self._note_time()
        if upgrade:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is here."""
        self._turn(in_head=False, in_body=False)
        self._note_time()
        super().on_message_complete()

    def _note_time(self) -> None:
        # What was sent ahead of its turn waited for the answers before it, not for this process.
        self.scope["state"][RECEIVED] = max(arrived_at(self.socket), self._answered_at)

    # Answers -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer is sent, or lies in the socket's buffer."""
        self._answered_at = time.monotonic()
        if self.pipeline:
            following, _ = self.pipeline[-1]
            following.scope["state"][RECEIVED] = self._answered_at
        super().on_response_complete()
        self._unset_keepalive_if_required()  # this class keeps the time
        self._parse()
        if not self.transport.is_closing():
            if self.pipeline:
                self.flow.pause_reading()  # else each answer would let in as many requests as fit a buffer
            elif self.cycle.response_complete:
                self.flow.resume_reading()  # a part of a request was left, and nobody asks for the rest of it
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
        if self._refusal is not None:
            return _Wait.REST_OF_BODY
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

    def _turn(self, *, in_head: bool, in_body: bool) -> None:
        self._in_head, self._in_body = in_head, in_body
        self._besides_body, self._turned = 0, True

    def _count(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > self._limits.max_header_bytes:
            self._refusal = self._too_large()
            raise _RefusedError

    def _too_large(self) -> ApiError:
        limit = f"more than {self._limits.max_header_bytes} bytes (gateway.max_header_bytes)"
        if self._in_head or not self._in_body:
            return _refused_head(limit)
        why = f"What the request says besides its body (chunk sizes and extensions, trailers) is {limit}."
        return ApiError(431, why, code="headers_too_large")

    def _refuse(self, error: ApiError) -> None:
        """Say why, unless an answer is under way that this would spoil, and close.

        A socket closed over unread input resets the connection, and the client may never see why. So this one is closed
        in one direction first, and no more is read.
        """
        self._refusal = error
        if not self._may_answer():
            self.transport.close()
            return
        body = msgspec.json.encode(error.body())
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in error.headers.items()) + "\r\n"
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():  # TLS has no half-closed connections
            self.transport.write_eof()
        self._unparsed = memoryview(b"")
        self.flow.pause_reading()

    def _may_answer(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self._in_head or self.pipeline or cycle.response_started:
            return False
        cycle.disconnected = True  # this request has its answer: the application's own is not sent any more
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        return True


class _Flow(FlowControl):
    """Reads on only when what came has been parsed: each application that waits for more of its body, or for its client
    to leave, asks for that."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Read on, unless requests wait for their turn or the client was refused."""
        if not self._connection.has_enough:
            super().resume_reading()


def _refused_head(what: str) -> ApiError:
    return ApiError(431, f"The request's target and headers are {what}.", code="headers_too_large")
