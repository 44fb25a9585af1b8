"""Virtual time: hours of timers, timeouts and sleeps pass as fast as the code between them runs, the same each time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualClock:
    """A clock that moves only when it is told to, or on a sleep."""

    __slots__ = ("_now", "_started")

    def __init__(self, now: float = 0.0, unix_s: float = 0.0) -> None:
        """`unix_s`: Unix time at the moment `now`."""
        self._now = now
        self._started = unix_s - now

    def now(self) -> float:
        return self._now

    def time(self) -> float:
        return self._started + self._now

    def sleep(self, seconds: float) -> None:
        self._now += max(0.0, seconds)

    def move_to(self, moment: float) -> None:
        self._now = max(self._now, moment)


class _VirtualSelector(selectors.DefaultSelector):
    """Moves the clock instead of waiting for the next timer."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Ready file objects; None: wait for one, since no timer is set."""
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self._clock.sleep(timeout)
        return ready


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time: with nothing left to run, the clock moves to the next timer.

    Threads and sockets work, but the clock does not wait for them.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_VirtualSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now()


def run_virtual(main: Coroutine[Any, Any, Result], clock: VirtualClock) -> Result:
    with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
        return runner.run(main)
