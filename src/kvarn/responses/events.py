"""The events of a response that is being made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from kvarn.wire.openai.responses.answer import ENDED, Response, StreamEvent

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
        return bool(self._events) and is_end(self._events[-1])

    def append(self, *events: StreamEvent) -> None:
        """Add events."""
        self._events += events
        self._notify()

    def end(self) -> None:
        """No more will come."""
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


def is_end(event: StreamEvent) -> bool:
    """Whether it says how a response ended."""
    return isinstance(event.response, Response) and event.response.status in ENDED
