"""Counts of this process: exact for one server, and what several fall back to while Redis is away."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvarn.limits.counts import Counts, Timing
from kvarn.limits.orders import Order, Verdict


class LocalCounts:
    """A `Keeper` over this process's counts; nothing here waits.

    Args:
        timing: How long things count.
        clock: Monotonic seconds.
    """

    def __init__(self, timing: Timing, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = Counts(timing)
        self._clock = clock

    async def take(self, order: Order) -> Verdict:
        """Take an order in, if every bound has room for it; otherwise count nothing."""
        return self.take_now(order)

    def take_now(self, order: Order) -> Verdict:
        """As `take`."""
        return self._counts.take(order, self._now_ms())

    def renew(self, order: Order, used: int) -> None:
        """The work still runs."""
        self._counts.renew(order, used, self._now_ms())

    def settle(self, order: Order, used: int, *, whole: bool = False) -> None:
        """The work is over."""
        self._counts.settle(order, used, self._now_ms(), whole=whole)

    def sweep(self) -> None:
        """Drop what no longer counts."""
        self._counts.sweep(self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
