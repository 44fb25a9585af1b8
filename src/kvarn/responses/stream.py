"""Events of responses on their way to clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeGuard

from kvarn.responses.ending import Ending
from kvarn.serving.errors import to_api_error
from kvarn.wire.openai.responses.answer import ENDED, ErrorEvent, ResponseEvent, StreamEvent
from kvarn.wire.sse import encode_json

_MOST_AT_ONCE = 64
"""Events of a log in one write: of one that is long, no reader takes all at once."""


class EventLog:
    """The events of a response that is being made, for any number of readers, each at its own pace."""

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []
        self._ended = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def told_end(self) -> bool:
        """Whether its last event tells how the response ended."""
        return bool(self._events) and is_end(self._events[-1])

    def append(self, *events: StreamEvent) -> None:
        """Add events."""
        self._events += events
        self._tell()

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._tell()

    async def follow(self, after: int = -1) -> AsyncGenerator[list[StreamEvent], None]:
        """The events with numbers above `after`, those to come included, up to the last."""
        position = after + 1  # numbers rise from 0 by one
        while True:
            news = self._news
            while batch := self._events[position : position + _MOST_AT_ONCE]:
                position += len(batch)
                yield batch
            if self._ended:
                return
            await news.wait()

    def _tell(self) -> None:
        told, self._news = self._news, asyncio.Event()
        told.set()


class ResponseStream:
    """Encodes events as server-sent events.

    Args:
        batches: The events, as they come.
        ending: Of the response that is made for this stream.
    """

    def __init__(self, batches: AsyncGenerator[list[StreamEvent], None], ending: Ending | None = None) -> None:
        self._batches = batches
        self._ending = ending
        self._next = 0
        self._told_end = False

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """The events' bytes; closing this closes the events."""
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                if batch:
                    yield self._encode(batch)

    def tell(self, error: Exception) -> bytes:
        """Why a stream ends before its end. How the response has ended by then is told first; where that is no
        failure, there is nothing more to tell."""
        last = self._encode(self._ending.take_last_events()) if self._ending is not None else b""
        if self._told_end:
            return last
        told = to_api_error(error)
        number = self._next
        return last + encode_event(
            ErrorEvent(code=told.code, message=told.message, param=told.param, sequence_number=number)
        )

    def _encode(self, batch: Sequence[StreamEvent]) -> bytes:
        for event in batch:
            self._next = event.sequence_number + 1
            self._told_end = is_end(event) and event.response.status != "failed"
        return b"".join(map(encode_event, batch))


def is_end(event: StreamEvent) -> TypeGuard[ResponseEvent]:
    """Whether it tells how a response ended."""
    return isinstance(event, ResponseEvent) and event.response.status in ENDED


def encode_event(event: StreamEvent) -> bytes:
    """One event, with its name, as OpenAI sends it."""
    return b"event: " + event.type.encode() + b"\ndata: " + encode_json(event) + b"\n\n"
