"""Answers that take long: JSON or a stream of events, given up the moment the client leaves."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kvarn.answers.errors import shutting_down, to_api_error
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.record import RequestRecord
from kvarn.gateway.record import ANSWERS_HEAD, client_left, record_of
from kvarn.wire.sse import EncodedStream

_log = logging.getLogger("kvarn.gateway")

_LEAVE_S = 0.2
_PIECE_BYTES = 256 * 1024
"""Piece of a JSON answer written at once: the rest is copied into the socket's buffer once the client has read this."""

_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def json_response(answer: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")


class WatchedResponse(Response):
    """Runs `answer` while listening for the client; cancels it when the client leaves.

    Cancelling closes the replica's generators on the way out, which aborts their requests in the engine.
    Exceptions raised before anything is sent reach the error handlers and become an ordinary HTTP error.
    """

    def __init__(self, answer: Callable[[RequestRecord, Send], Coroutine[None, None, None]]) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        work = asyncio.create_task(self._answer(record, send))
        gone = asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            else:
                record.reply.disconnected = True
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})


def json_when_done(work: Coroutine[None, None, object], held: HeldBytes | None = None) -> WatchedResponse:
    """One JSON object, made by `work`, which is cancelled when the client leaves first.

    It is written in pieces, as fast as the client reads; `held` counts the memory that it takes until then, where that
    is worth counting: while it is made, what is gathered and its encoded form.
    """

    async def answer(_: RequestRecord, send: Send) -> None:
        made = await work
        body = msgspec.json.encode(made)
        del made
        if held is not None and held.size:
            held.resize(len(body))
        headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for end in range(_PIECE_BYTES, len(body) + _PIECE_BYTES, _PIECE_BYTES):
            await send(_body(body[end - _PIECE_BYTES : end], is_last=end >= len(body)))

    return WatchedResponse(answer)


def event_stream(
    events: EncodedStream[Any] | AsyncGenerator[bytes, None],
    end: bytes | None = None,
    encode_error: Callable[[Exception], bytes] | None = None,
) -> WatchedResponse:
    """A stream of events, one write for each, framed as the request's dialect does; `end` (default: the dialect's)
    follows the last.

    The first event is awaited before the status is sent: a request refused in the queue is an ordinary HTTP error. A
    later error is sent as the event that `encode_error` makes of it (default: the dialect's), and the stream
    ends without `end`. `send` waits while the client's socket is full; meanwhile nothing is taken from `events`, so
    nothing piles up here.
    """
    stream: EncodedStream[Any] = events if isinstance(events, EncodedStream) else EncodedStream(events, bytes)

    async def answer(record: RequestRecord, send: Send) -> None:
        dialect = record.reply.dialect
        why = encode_error or partial(_error_event, record)
        headers = [(b"content-type", dialect.stream_type.encode()), *_STREAM_HEADERS]
        outbox, encode = _Outbox(send), stream.encode
        start: tuple[Message, ...] = ({"type": "http.response.start", "status": 200, "headers": headers},)
        try:
            async with aclosing(stream.items) as items:
                try:
                    async for item in items:
                        if data := encode(item):
                            await outbox.send(*start, {"type": "http.response.body", "body": data, "more_body": True})
                            start = ()
                    last = stream.last() + (dialect.stream_end if end is None else end)
                except Exception as error:
                    if start:
                        raise
                    last = why(error)
                await outbox.send(*start, _body(last, is_last=True))
        except asyncio.CancelledError:
            if outbox.begun:
                await _end_unfinished(outbox, why)
            raise

    return WatchedResponse(answer)


class ContentStream(WatchedResponse):
    """Bytes as fast as the client takes them. `content` is closed once the client has left or has all; where the client
    asks for the headers only, nothing is taken from it.

    The first piece is awaited before the status is sent: what cannot be read is an ordinary HTTP error.
    """

    def __init__(
        self, content: AsyncGenerator[bytes, None], status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(self._stream)
        self.status_code = status_code
        named = {"content-type": self.media_type or "application/octet-stream", **(headers or {})}
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if ANSWERS_HEAD in scope:
            await send(self._start())
            await send(_body(b"", is_last=True))
        else:
            await super().__call__(scope, receive, send)

    async def _stream(self, _: RequestRecord, send: Send) -> None:
        async with aclosing(self._content) as content:
            first = await anext(content, b"")
            await send(self._start())
            await send(_body(first))
            async for piece in content:
                await send(_body(piece))
        await send(_body(b"", is_last=True))

    def _start(self) -> Message:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}


class FileContent(ContentStream):
    media_type = "application/octet-stream"


def file_content(content: AsyncGenerator[bytes, None], size: int, filename: str) -> FileContent:
    """A file's bytes, which browsers save under this name and show nowhere."""
    headers = {
        "content-length": str(size),
        "content-disposition": f"attachment; filename*=UTF-8''{urllib.parse.quote(filename, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return FileContent(content, headers=headers)


@dataclass(slots=True)
class _Outbox:
    """Messages on their way to a client, in order. What a full socket holds up stays here when its sender is cancelled.

    The server waits for room in the socket, then writes a message whole: of one whose sending was cancelled nothing is
    written, and it may be sent again.
    """

    to_client: Send
    unsent: deque[Message] = field(default_factory=deque)
    begun: bool = False  # whether there ever was a message

    async def send(self, *messages: Message) -> None:
        """Send what is left of earlier messages, then these."""
        self.begun = True
        self.unsent += messages
        while self.unsent:
            await self.to_client(self.unsent[0])
            self.unsent.popleft()


def _body(data: bytes, *, is_last: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


async def _end_unfinished(outbox: _Outbox, encode_error: Callable[[Exception], bytes]) -> None:
    """Send the reason why a stream ends unfinished, in vain where the client has left."""
    has_last = bool(outbox.unsent) and outbox.unsent[-1].get("more_body") is False
    why = [] if has_last else [_body(encode_error(shutting_down()), is_last=True)]
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_S):  # the socket of a slow reader may be full
            await outbox.send(*why)


def _error_event(record: RequestRecord, error: Exception) -> bytes:
    """An error in the middle of a stream, as one event."""
    api_error = to_api_error(error)
    record.reply.error_code = api_error.code or api_error.type
    if api_error.status == 500:
        _log.error("a stream failed", exc_info=error)
    return record.reply.dialect.stream_error(record.reply.dialect.error_body(api_error, record.request_id))
