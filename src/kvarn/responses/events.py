"""The events of responses: kept for readers while they are made, and encoded for a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

from kvarn.answers.errors import to_api_error
from kvarn.responses.shown import shown_event
from kvarn.wire.openai.responses.answer import ENDED, Response, StreamEvent
from kvarn.wire.sse import named_event

_MAX_BATCH = 64
"""Events of a log in one write."""


class EventLog:
    """The events of a response that is being made, for any number of readers, each at its own pace."""

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []
        self._ended = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def has_end(self) -> bool:
        """Whether its last event says how the response ended."""
        return bool(self._events) and _end_of(self._events[-1]) is not None

    def append(self, *events: StreamEvent) -> None:
        self._events += events
        self._notify()

    def end(self) -> None:
        self._ended = True
        self._notify()

    async def follow(self, after: int = -1) -> AsyncGenerator[list[StreamEvent], None]:
        """The events with numbers above `after`, those to come included, up to the last."""
        position = after + 1  # numbers rise from 0 by one
        while True:
            changed = self._changed
            while batch := self._events[position : position + _MAX_BATCH]:
                position += len(batch)
                yield batch
            if self._ended:
                return
            await changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class EventEncoder:
    """Encodes the events of one response as server-sent events; see `shown_event` for `include`."""

    def __init__(self, include: Collection[str] = ()) -> None:
        self._include = include
        self._next = 0
        self._has_end = False
        """Whether an event has told how the response ended, and it was no failure."""

    def encode(self, batch: list[StreamEvent]) -> bytes:
        for event in batch:
            self._next = event.sequence_number + 1
            self._has_end = _end_of(event) not in (None, "failed")
        return b"".join(named_event(event.type, shown_event(event, self._include)) for event in batch)

    async def encoded(self, batches: AsyncGenerator[list[StreamEvent], None]) -> AsyncGenerator[bytes, None]:
        """Events as they come; closing this closes them."""
        async with aclosing(batches):
            async for batch in batches:
                if batch:
                    yield self.encode(batch)

    def error_event(self, error: Exception) -> bytes:
        """The failure that ends a stream early; nothing where that was told, and no failure."""
        if self._has_end:
            return b""
        api_error = to_api_error(error)
        event = StreamEvent(
            type="error",
            sequence_number=self._next,
            code=api_error.code,
            message=api_error.message,
            param=api_error.param,
        )
        return named_event("error", event)


def _end_of(event: StreamEvent) -> str | None:
    """The end of the response, where an event tells that."""
    response = event.response
    return response.status if isinstance(response, Response) and response.status in ENDED else None
