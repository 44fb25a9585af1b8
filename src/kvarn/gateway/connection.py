"""One client's connection: uvicorn's protocol, with bounds on how long it may wait and how much it may send.

uvicorn has settings for few of these, and middleware sees a request only once its headers are parsed, so they are kept
here, in the parser's and asyncio's callbacks (uvicorn is pinned). Each is something that operators of a public server
would notice without it:

* Time: headers that come byte by byte (408), a connection without a request, the rest of a body that nobody reads, an
  answer that the client does not read. uvicorn bounds the time between two requests only.
* Memory: headers (number and bytes), and the chunk sizes, extensions and trailers around a chunked body: the parser
  gathers some of them without end. Requests sent ahead of their turn wait as the bytes they came as.
* A connection too many is told so (503) before it is read.
* A request for an upgrade that has a body is refused: the parser would take the body for a request of its own.
* The time at which the kernel had a request (`record.arrived_at`), from which latencies count.
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

from kvarn.gateway.record import RECEIVED, arrived_at
from kvarn.wire.openai.errors import ApiError, unavailable

LINGER_S = 2.0
"""Seconds that the rest of a body may still arrive after its answer, and that a refused client has to read why."""
MAX_REFUSED = 256
"""Connections that are one too many and have not read why yet; more are closed at once."""

_PIECE_BYTES = 4096
"""Bytes parsed at once. The shortest request has 18, and costs kilobytes and 16 us once it is parsed: of a whole read
(256 KiB) they would hold up the event loop for a quarter of a second."""
_FRAMING_PER_BODY_BYTE = 16
"""What a byte of a chunked body may cost besides: one in a chunk of its own has five bytes around it."""
_ANNOUNCE_BODY = (b"content-length", b"transfer-encoding")

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


class _Phase(Enum):
    """Which part of a request comes next."""

    START = "start"
    HEADERS = "headers"
    BODY = "body"


class _RefusedError(Exception):
    """Raised inside the parser, which then stops."""


class Connection(HttpToolsProtocol):
    """A connection that does not outlive its use.

    Args:
        limits: Its bounds.
        client: Its socket, where it has one.
        arguments: What uvicorn gives to a protocol.
    """

    def __init__(self, limits: ConnectionLimits, client: socket.socket | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._socket = client
        self._limits = limits
        self._phase = _Phase.START
        self._phase_began = False
        """Whether the piece that is being parsed began a phase."""
        self._phase_bytes = 0
        """Of this phase, without those of the body."""
        self._body_bytes = 0
        self._unparsed = memoryview(b"")
        self._answered_at = 0.0
        self._refusal: ApiError | None = None
        self._waits_for: _Phase | None = None
        """What the client has to send before the timer is over; None: an answer is under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # Bytes from the client -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came; one too many is told so before it is read."""
        max_connections = self._limits.max_connections
        is_full = len(self.connections) >= max_connections
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        if is_full:
            self.connections.discard(self)  # it takes no place while it reads why
            self._limits.refused.add(self)
            why = f"{max_connections} connections are open (gateway.max_connections). Try again."
            self._refuse(unavailable(why, "server_busy"))
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._timer = _cancel(self._timer)
        self._write_timer = _cancel(self._write_timer)
        self._unparsed = memoryview(b"")
        super().connection_lost(exc)
        self._limits.refused.discard(self)

    def data_received(self, data: bytes) -> None:
        """More of a request, or of several."""
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()
        if self.has_enough:
            self.flow.pause_reading()
        self._set_timer()

    @property
    def has_enough(self) -> bool:
        """Whether nothing more is to be read: bytes wait for the answers to the requests before them, or no more are
        wanted."""
        return bool(self._unparsed) or self._refusal is not None

    def _parse(self) -> None:
        """Parse what has come, until a request has to wait for the answer to another."""
        while self._unparsed and not self.pipeline and self._refusal is None and not self.transport.is_closing():
            piece, self._unparsed = self._unparsed[:_PIECE_BYTES], self._unparsed[_PIECE_BYTES:]
            self._phase_began, body_before = False, self._body_bytes
            super().data_received(piece)  # type: ignore[arg-type]  # the parser takes any buffer
            if self._phase_began:
                continue  # it belongs to several phases, and is small
            self._phase_bytes += len(piece) - (self._body_bytes - body_before)
            allowed = self._body_bytes * _FRAMING_PER_BODY_BYTE if self._phase is _Phase.BODY else 0
            if self._refusal is None and self._phase_bytes > self._limits.max_header_bytes + allowed:
                self._refuse(_too_large(f"{self._limits.max_header_bytes} bytes (gateway.max_header_bytes)"))

    # The parser's callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begin(_Phase.HEADERS)
        self._body_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: what follows a chunked body comes in the same way.

        Trailers are dropped. Nobody reads them here, and as headers they would say who asks for what after a proxy
        has looked.
        """
        if self._phase is not _Phase.HEADERS:
            return
        if len(self.headers) >= self._limits.max_headers:
            self._refusal = _too_large(f"{self._limits.max_headers} headers (gateway.max_headers)")
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request begins to be answered."""
        upgrade = self.parser.should_upgrade()
        if upgrade and any(name in _ANNOUNCE_BODY for name, _ in self.headers):
            why = "The server speaks HTTP/1.1 only: send a request that has a body without the header 'upgrade'."
            self._refusal = ApiError(400, why, code="upgrade_not_supported")
            raise _RefusedError
        self._begin(_Phase.BODY)
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
        self._begin(_Phase.START)
        self._note_time()
        super().on_message_complete()

    def _begin(self, phase: _Phase) -> None:
        self._phase, self._phase_began, self._phase_bytes = phase, True, 0

    def _note_time(self) -> None:
        # What was sent ahead of its turn waited for the answers before it, not for this process.
        self.scope["state"][RECEIVED] = max(arrived_at(self._socket), self._answered_at)

    # Answers -------------------------------------------------------------------------------------------------------

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
        self._set_timer()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._set_write_timer()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._write_timer = _cancel(self._write_timer)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or too much of it, and close."""
        self._refuse(self._refusal or ApiError(400, msg, code="invalid_http"))

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
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if self.transport.can_write_eof():  # TLS has no half-closed connections
            self.transport.write_eof()
        self._unparsed = memoryview(b"")
        self.flow.pause_reading()

    def _may_answer(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self._phase is _Phase.HEADERS or self.pipeline or cycle.response_started:
            return False
        cycle.disconnected = True  # this request has its answer: the application's own is not sent any more
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        return True

    # Time ----------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Give the client time for what is due next; what it already waits for keeps its deadline."""
        if self.transport.is_closing():
            self._timer, self._waits_for = _cancel(self._timer), None
            if self.transport.get_write_buffer_size():
                self._set_write_timer()
            return
        waits_for: _Phase | None = self._phase
        if self._refusal is not None:
            waits_for = _Phase.BODY
        elif self.cycle is not None and not self.cycle.response_complete:
            waits_for = None
        if waits_for is self._waits_for:
            return
        self._timer, self._waits_for = _cancel(self._timer), waits_for
        if waits_for is not None:
            seconds = {
                _Phase.START: self._limits.idle_timeout_s,
                _Phase.HEADERS: self._limits.header_timeout_s,
                _Phase.BODY: LINGER_S,
            }[waits_for]
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self._waits_for is _Phase.HEADERS:
            why = f"The request's headers did not arrive within {self._limits.header_timeout_s:g} s."
            self._refuse(ApiError(408, why, code="request_timeout"))
        else:
            self.transport.close()
        self._set_timer()

    def _set_write_timer(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self._cut_off)

    def _cut_off(self) -> None:
        _log.info("a client did not read its answer", extra={"seconds": self._limits.write_timeout_s})
        self.transport.abort()


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


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None


def _too_large(limit: str) -> ApiError:
    why = f"The request's target and headers, or what stands around the parts of its body, are more than {limit}."
    return ApiError(431, why, code="headers_too_large")
