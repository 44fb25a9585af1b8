"""How many lines of batches may run: what an engine has left over, found by careful trying.

Additive increase, multiplicative decrease (Chiu and Jain, 1989): each answer lets one line more into the engine, any
sign that something better is kept waiting halves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvarn.fairness.semaphore import FairSemaphore
from kvarn.wire.messages import EngineStats

BATCH_PRIORITY = 10
"""Tier of a batch's lines in the engine; lower runs first."""

_START = 4
_MIN_FREE_KV = 0.1
"""Share of the KV cache that is left to requests of better tiers."""
_HALVE_EVERY_S = 1.0
"""A sign seen in the same statistics twice is one sign."""
_LOOK_AGAIN_S = 0.05


@dataclass(slots=True)
class LineWindow:
    """The lines of one model that one gateway has in flight. Pure: the clock is passed in.

    Args:
        most: Lines at most.
        tpot_target_s: What a step may take while better requests run. Seconds.
    """

    most: int
    tpot_target_s: float
    size: float = field(init=False)
    in_flight: int = 0
    _halved_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self.size = min(_START, self.most)

    def has_room(self, stats: EngineStats, now: float) -> bool:
        """Whether one more line may go into the engine, as its latest statistics tell."""
        better_waiting = sum(n for tier, n in stats.waiting_by_priority.items() if tier < BATCH_PRIORITY)
        better_running = max(0, stats.running - self.in_flight) > 0
        if better_waiting or (better_running and stats.step_s > self.tpot_target_s):
            self.shrink(now)
            return False
        if stats.waiting > better_waiting:
            return False  # lines wait already: more would only wait behind them
        if stats.kv_blocks_total and stats.kv_blocks_free < _MIN_FREE_KV * stats.kv_blocks_total:
            return False
        return self.in_flight < int(self.size)

    def grow(self) -> None:
        """A line was answered."""
        self.size = min(self.size + 1, self.most)

    def shrink(self, now: float) -> None:
        """Something better is kept waiting, or the engine refused a line."""
        if now - self._halved_at >= _HALVE_EVERY_S:
            self._halved_at = now
            self.size = max(1.0, self.size / 2)


class LineGate:
    """Lets lines of all batches into one engine: organisations take turns, each with its lines in the order in which
    they came here.

    Args:
        window: How many there may be.
        stats: The engine's latest statistics.
        clock: Monotonic seconds.
    """

    def __init__(self, window: LineWindow, stats: Callable[[], EngineStats], clock: Callable[[], float]) -> None:
        self.window = window
        self._stats = stats
        self._clock = clock
        self._turns = FairSemaphore(1)
        self._left = asyncio.Event()
        self._left_at = float("-inf")

    @property
    def empty_s(self) -> float:
        """Seconds for which no line has been in the engine."""
        return 0.0 if self.window.in_flight else self._clock() - self._left_at

    @property
    def places(self) -> int:
        """Places that are free, as far as the number of lines goes."""
        return max(0, int(self.window.size) - self.window.in_flight)

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None, None]:
        """A place in the engine, for as long as the block lasts."""
        async with self._turns.place(tenant):
            while not self.window.has_room(self._stats(), self._clock()):
                await self._wait()
            self.window.in_flight += 1
        try:
            yield
        finally:
            self.window.in_flight -= 1
            self._left_at = self._clock()
            self._left.set()

    def answered(self) -> None:
        """The line in it went well."""
        self.window.grow()

    def refused(self) -> None:
        """The engine did not take the line in it."""
        self.window.shrink(self._clock())

    async def _wait(self) -> None:
        self._left.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):  # the statistics change without a word
                await self._left.wait()
        except TimeoutError:
            pass
