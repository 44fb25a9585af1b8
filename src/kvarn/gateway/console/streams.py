"""Streams of the console's pages: events for as long as somebody watches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request

from kvarn.clock import SYSTEM_CLOCK
from kvarn.gateway.answer import WatchedResponse, event_stream
from kvarn.gateway.record import record_of
from kvarn.store.owner import Owner
from kvarn.wire.openai.errors import ApiError

_ALIVE_S = 15.0
"""Interval of comments on a stream without events: proxies close silent connections."""
_LONGEST_S = 600.0
"""Time after which a stream ends: the page connects again, and whoever watches is authenticated again."""
_ALIVE = b": alive\n\n"
MAX_STREAMS = 32
"""Streams of one viewer that a gateway process answers at once."""

Holder = tuple[Owner, str | None, str | None]
"""Project, key and user of a viewer."""


def console_stream(request: Request, events: AsyncGenerator[bytes, None]) -> WatchedResponse:
    """A stream of events. It ends at once when the server stops, so that nobody waits for it, and after ten minutes.
    Raises `ApiError` 429: the viewer has very many open. They would take the places of requests to models."""
    principal, open_streams = record_of(request.scope).principal, request.app.state.console_streams
    holder = principal.owner, principal.key_id, principal.user_id
    if open_streams[holder] >= MAX_STREAMS:
        why = f"You have {MAX_STREAMS} pages of the console open that follow the server: close one."
        raise ApiError(429, why, type="rate_limit_error", code="too_many_streams")
    return event_stream(_counted(open_streams, holder, until_stop(request.app.state.stopping, events)), end=b"")


async def _counted(
    counts: Counter[Holder], holder: Holder, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    counts[holder] += 1
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    finally:
        counts[holder] -= 1
        if not counts[holder]:
            del counts[holder]


async def until_stop(stopping: asyncio.Event, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    stop = asyncio.create_task(stopping.wait())
    ends = SYSTEM_CLOCK.now() + _LONGEST_S
    async with aclosing(events):
        item: asyncio.Task[bytes | None] | None = None
        try:
            while SYSTEM_CLOCK.now() < ends:
                item = item or asyncio.create_task(_next(events))
                await asyncio.wait({item, stop}, timeout=_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    return
                if not item.done():
                    yield _ALIVE
                    continue
                data, item = item.result(), None
                if data is None:
                    return
                yield data
        finally:
            tasks = {stop} if item is None else {stop, item}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # before `events` is closed


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(events, None)
