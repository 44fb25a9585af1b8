"""Runs a process again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

_MAX_BACKOFF_S = 30.0


async def keep_running(
    run: Callable[[], Awaitable[str | None]],
    stopping: asyncio.Event,
    first_backoff_s: float,
    on_failure: Callable[[str | None, float], None],
) -> None:
    """Run again and again until `stopping` is set.

    The pause before the next run doubles with each failure up to half a minute; a run longer than that starts over.

    Args:
        run: One run; returns why it ended.
        stopping: Ends it after the present run, or in a pause.
        first_backoff_s: The pause after the first failure.
        on_failure: Given the reason and the seconds of each pause.
    """
    loop, backoff_s = asyncio.get_running_loop(), first_backoff_s
    while not stopping.is_set():
        began = loop.time()
        failure = await run()
        if stopping.is_set():
            return
        if loop.time() - began > _MAX_BACKOFF_S:
            backoff_s = first_backoff_s
        on_failure(failure, backoff_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), backoff_s)
        backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
