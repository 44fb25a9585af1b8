"""Answers that take long: JSON or a stream of events, given up the moment the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvarn.gateway.errors import shutting_down, to_api_error
from kvarn.gateway.record import client_left, record_of
from kvarn.gateway.sse import DONE, event

_log = logging.getLogger("kvarn.gateway")

_LEAVE_S = 0.2

_JSON_HEADERS = [(b"content-type", b"application/json")]
_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def json_response(answer: object, status: int = 200) -> Response:
    """A finished answer: a msgspec struct or plain data."""
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")


class WatchedResponse(Response):
    """Runs `answer` while listening for the client; cancels it when the client leaves.

    Cancelling closes the replica's generators on the way out, which aborts their requests in the engine.
    Exceptions raised before anything is sent reach the error handlers and become an ordinary HTTP error.
    """

    def __init__(self, answer: Callable[[Send], Coroutine[None, None, None]]) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or give it up."""
        work = asyncio.create_task(self._answer(send))
        gone = asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            else:
                record_of(scope).disconnected = True
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})


def json_when_done(work: Coroutine[None, None, object]) -> WatchedResponse:
    """One JSON object, made by `work`, which is cancelled when the client leaves first."""

    async def answer(send: Send) -> None:
        body = msgspec.json.encode(await work)
        headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return WatchedResponse(answer)


def event_stream(
    events: AsyncGenerator[bytes, None],
    end: bytes = DONE,
    tell: Callable[[Exception], bytes] | None = None,
) -> WatchedResponse:
    """Server-sent events, already encoded, one write for each item of `events`; `end` follows the last.

    The first item is awaited before the status is sent: a request refused in the queue is an ordinary HTTP error. A
    later error is sent as the event that `tell` makes of it (default: OpenAI's error shape), and the stream ends
    without `end`. `send` waits while the client's socket is full; meanwhile nothing is taken from `events`, so nothing
    piles up here.
    """
    say = tell or error_event

    async def answer(send: Send) -> None:
        started, unsent = False, b""
        try:
            async with aclosing(events):
                unsent = first = await anext(events, b"")
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
                unsent = b""
                await send({"type": "http.response.body", "body": first, "more_body": True})
                last = end
                try:
                    async for item in events:
                        await send({"type": "http.response.body", "body": item, "more_body": True})
                except Exception as error:
                    last = say(error)
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except asyncio.CancelledError:
            if started:
                await _take_leave(send, unsent + say(shutting_down()))
            raise

    return WatchedResponse(answer)


async def _take_leave(send: Send, last: bytes) -> None:
    """Say why a stream ends unfinished. Where it is the client that left, nobody hears it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_S):  # the socket of a slow reader may be full
            await send({"type": "http.response.body", "body": last, "more_body": False})


def error_event(error: Exception) -> bytes:
    """An error in the middle of a stream, as one event."""
    told = to_api_error(error)
    if told.status == 500:
        _log.error("a stream failed", exc_info=error)
    return event(told.body())
