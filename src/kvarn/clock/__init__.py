"""The one clock: seconds that never go back, the time of day, and a blocking sleep.

Objects take a clock, or its `now`; only `SystemClock` reads the machine's time. Whatever waits on an event loop uses
asyncio's timers, which follow the loop: `kvarn.clock.virtual` has a loop whose time is a virtual clock's.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time. All times are in seconds."""

    def now(self) -> float:
        """Monotonic time, from an arbitrary start; the event loop's time has the same start."""

    def time(self) -> float: ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    # Methods, which look the function up at each call: a simulation forbids them (`kvarn.clock.guard`).

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def time(self) -> float:
        return time.time()


SYSTEM_CLOCK = SystemClock()
