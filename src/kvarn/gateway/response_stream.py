"""Events of responses on their way to clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from kvarn.gateway.errors import to_api_error
from kvarn.gateway.sse import encode_json
from kvarn.wire.openai.response_answer import ErrorEvent, StreamEvent


class EventLog:
    """The events of a response that is being made, for any number of readers, each at its own pace."""

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []
        self._ended = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def append(self, *events: StreamEvent) -> None:
        """Add events."""
        self._events += events
        self._tell()

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._tell()

    async def follow(self, after: int = -1) -> AsyncGenerator[StreamEvent, None]:
        """The events with numbers above `after`, those to come included, up to the last."""
        position = after + 1  # numbers rise from 0 by one
        while True:
            news = self._news
            while position < len(self._events):
                position += 1
                yield self._events[position - 1]
            if self._ended:
                return
            await news.wait()

    def _tell(self) -> None:
        told, self._news = self._news, asyncio.Event()
        told.set()


class ResponseStream:
    """Encodes events as server-sent events."""

    def __init__(self, events: AsyncGenerator[StreamEvent, None]) -> None:
        self._events = events
        self._next = 0

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """The events' bytes; closing this closes the events."""
        async with aclosing(self._events) as events:
            async for event in events:
                self._next = event.sequence_number + 1
                yield encode_event(event)

    def tell(self, error: Exception) -> bytes:
        """The event that says why a stream ends before its end."""
        told = to_api_error(error)
        number = self._next
        return encode_event(ErrorEvent(code=told.code, message=told.message, param=told.param, sequence_number=number))


def encode_event(event: StreamEvent) -> bytes:
    """One event, with its name, as OpenAI sends it."""
    return b"event: " + event.type.encode() + b"\ndata: " + encode_json(event) + b"\n\n"
