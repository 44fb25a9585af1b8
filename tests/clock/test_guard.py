"""Nobody reads the machine's time while time is virtual."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from kvarn.bench import export  # has `datetime` among its globals
from kvarn.clock import SYSTEM_CLOCK
from kvarn.clock.guard import WallClockError, machine_time, virtual_time_only

TIMES = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "localtime")
READS: dict[str, Callable[[], object]] = {
    **{name: lambda name=name: getattr(time, name)() for name in (*TIMES, "gmtime")},
    **{f"datetime.{name}": lambda name=name: getattr(export.datetime, name)() for name in ("now", "utcnow", "today")},
    "sleep": lambda: time.sleep(0),
    "clock.now": SYSTEM_CLOCK.now,
    "clock.time": SYSTEM_CLOCK.time,
    "clock.sleep": lambda: SYSTEM_CLOCK.sleep(0),
    "event loop": lambda: asyncio.new_event_loop().time(),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_of_the_machines_time_raises_while_time_is_virtual(name: str) -> None:
    with virtual_time_only(), pytest.raises(WallClockError, match="take the clock"):
        READS[name]()
    READS[name]()


def test_a_time_that_is_given_is_converted() -> None:
    with virtual_time_only():
        assert time.gmtime(0).tm_year == 1970


def test_the_guard_is_lifted_for_a_progress_display_and_comes_back() -> None:
    with virtual_time_only():
        with machine_time():
            assert time.monotonic() > 0
        with pytest.raises(WallClockError):
            time.monotonic()


def test_guards_within_guards_end_with_the_outermost() -> None:
    with virtual_time_only():
        with virtual_time_only():
            pass
        with pytest.raises(WallClockError):
            time.monotonic()
    assert time.monotonic() > 0


def test_other_threads_go_on_undisturbed() -> None:
    read: list[float] = []
    with virtual_time_only():
        thread = threading.Thread(target=lambda: read.append(time.monotonic()))
        thread.start()
        thread.join()
    assert read


def test_the_log_of_the_process_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time_only():
        logging.getLogger("kvarn.test").warning("something is odd")
    assert "something is odd" in caplog.text


def test_an_instance_is_recognised_while_the_class_is_watched() -> None:
    moment = export.datetime.now()  # type: ignore[attr-defined]
    with virtual_time_only():
        assert isinstance(moment, export.datetime)  # type: ignore[attr-defined]
