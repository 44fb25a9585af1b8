"""Timers, timeouts and sleeps of asyncio on virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest

from kvarn.clock import SYSTEM_CLOCK
from kvarn.clock.virtual import VirtualClock, run_virtual


def test_hours_of_sleeps_and_timeouts_pass_in_order_without_waiting() -> None:
    clock, seen = VirtualClock(100.0, unix_s=1_000_000.0), []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((seconds, clock.now()))

    async def main() -> str:
        async with asyncio.TaskGroup() as group:
            for seconds in (7200.0, 0.5, 3600.0):
                group.create_task(sleeper(seconds))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return "done"

    assert run_virtual(main(), clock) == "done"
    assert seen == [(0.5, 100.5), (3600.0, 3700.0), (7200.0, 7300.0)]
    assert clock.now() == pytest.approx(7360.0)
    assert clock.time() == pytest.approx(1_007_260.0)


def test_threads_end_while_no_timer_is_set() -> None:
    assert run_virtual(asyncio.to_thread(lambda: "from a thread"), VirtualClock()) == "from a thread"


def test_a_blocking_sleep_moves_the_virtual_clock_and_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.sleep(2.5)
    clock.move_to(1.0)
    clock.sleep(-1.0)
    assert clock.now() == 2.5


def test_the_system_clock_has_the_start_of_event_loops() -> None:
    async def main() -> float:
        return asyncio.get_running_loop().time()

    before = SYSTEM_CLOCK.now()
    assert before <= asyncio.run(main()) <= SYSTEM_CLOCK.now()
    assert abs(SYSTEM_CLOCK.time() - time.time()) < 60
