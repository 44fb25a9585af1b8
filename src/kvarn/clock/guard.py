"""Guard of virtual time: while it is up, a thread that reads or waits for the machine's time gets an error.

One such read is enough to make a simulation depend on the machine. The functions of the module `time` are replaced,
wherever Kvarn's modules have them, and `datetime.now` and its like in Kvarn's modules; other threads go on undisturbed.
Records of the log carry the real time all the same: nothing is decided by them.
"""

from __future__ import annotations

import datetime
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

_FUNCTIONS = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("process_time", "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns"),
    *("localtime", "gmtime", "ctime", "sleep"),
)
_NEEDS_NO_CLOCK = ("localtime", "gmtime", "ctime")  # with an argument they only convert it
_ALLOWED = ("logging",)

_lock = threading.RLock()
_guarded: dict[int, int] = {}
"""Number of guards that are up in a thread, by the thread's number."""
_replaced: list[tuple[ModuleType, str, object]] = []


class WallClockError(RuntimeError):
    """The machine's time was read while time is virtual."""


@contextmanager
def virtual_time_only() -> Generator[None]:
    """Let this thread read no time of the machine in the block. Raises `WallClockError` where it does."""
    thread = threading.get_ident()
    with _lock:
        if not _guarded:
            _replace()
        _guarded[thread] = _guarded.get(thread, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _guarded[thread] -= 1
            if not _guarded[thread]:
                del _guarded[thread]
            if not _guarded:
                _restore()


@contextmanager
def machine_time() -> Generator[None]:
    """Lift the guard of this thread in the block, as for a progress display."""
    thread = threading.get_ident()
    with _lock:
        held = _guarded.get(thread, 0)
        if held:
            _guarded[thread] = 0
    try:
        yield
    finally:
        with _lock:
            if held:
                _guarded[thread] = held


def _forbid(name: str) -> None:
    if _guarded.get(threading.get_ident()) and sys._getframe(2).f_globals.get("__name__") not in _ALLOWED:
        _raise(name)


def _raise(name: str) -> NoReturn:
    raise WallClockError(f"{name} was called in a simulation: take the clock that is passed in (kvarn.clock)")


def _watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if not (arguments and name in _NEEDS_NO_CLOCK):
            _forbid(f"time.{name}")
        return original(*arguments)

    return call


_FORBIDDING = {name: _watched(name, getattr(time, name)) for name in _FUNCTIONS if hasattr(time, name)}


class _SameInstances(type):
    """Instances of the class beside which a guarded one stands are its own."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class _Datetime(datetime.datetime, metaclass=_SameInstances):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        _forbid("datetime.now")
        return datetime.datetime.now(tz)

    @classmethod
    def utcnow(cls) -> Any:
        _forbid("datetime.utcnow")
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        _forbid("datetime.today")
        return datetime.datetime.today()


class _Date(datetime.date, metaclass=_SameInstances):
    @classmethod
    def today(cls) -> Any:
        _forbid("date.today")
        return datetime.date.today()


def _replace() -> None:
    replacements: dict[int, object] = {id(getattr(time, name)): call for name, call in _FORBIDDING.items()}
    replacements[id(datetime.datetime)] = _Datetime
    replacements[id(datetime.date)] = _Date
    own = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "kvarn" and module]
    for module in [time, *own]:
        if module.__name__ == __name__:
            continue
        for name, value in list(vars(module).items()):
            if (other := replacements.get(id(value))) is not None:
                _replaced.append((module, name, value))
                setattr(module, name, other)


def _restore() -> None:
    for module, name, value in _replaced:
        setattr(module, name, value)
    _replaced.clear()
