"""Restarts of processes that end: the pauses, and the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from kvarn.clock import SYSTEM_CLOCK, Clock

_MAX_BACKOFF_S = 30.0
_WORKED_S = 5.0
"""A run of `keep_running` that lasted so long had begun to do its work."""


class RestartPauses:
    """Pauses before a process is run again. There is none after a run that did its work, nor after the first that did
    not: a process killed from outside is started again at once. One that ends again and again before it has done
    anything would only burn the machine: from then on the pause doubles, from `first_s` to `longest_s`."""

    AT_ONCE = 3
    """Runs in a row that did nothing and are followed by another at once."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = max(first_s, longest_s)
        self._in_vain = 0

    def after(self, *, worked: bool) -> float:
        """Seconds to wait after a run. `worked`: it did what it is for."""
        self._in_vain = 0 if worked else self._in_vain + 1
        doublings = self._in_vain - self.AT_ONCE - 1
        return 0.0 if doublings < 0 else min(self._first_s * 2.0 ** min(doublings, 64), self._longest_s)


async def keep_running(
    run: Callable[[], Awaitable[str | None]],
    stopping: asyncio.Event,
    first_backoff_s: float,
    on_failure: Callable[[str | None, float], None],
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Run again and again until `stopping` is set, with `RestartPauses` of up to half a minute between. `run` returns
    why it ended; `on_failure` is given that and the seconds of each pause."""
    pauses = RestartPauses(first_backoff_s, _MAX_BACKOFF_S)
    while not stopping.is_set():
        began = clock.now()
        failure = await run()
        if stopping.is_set():
            return
        backoff_s = pauses.after(worked=clock.now() - began > _WORKED_S)
        on_failure(failure, backoff_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), backoff_s)
