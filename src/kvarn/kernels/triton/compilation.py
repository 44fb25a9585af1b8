"""Kernels compiled in threads, before they are first launched.

Triton compiles a kernel when it is launched with constants that it was never launched with: seconds, in which a step
waits; and keeps it on disk, from which it is read in some hundredths. Which constants a model's kernels get follows
from the model, the number of rows and few other things, so they are found by going through steps of all sizes once
without launching anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from triton import knobs
from triton.runtime import driver

_numbers = count(-1, -1)
_log = logging.getLogger(__name__)


class _NoDevice:
    """Triton's driver for a device that has no kernels yet: each is asked for once when it would be launched."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._number = next(_numbers)
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_current_device(self) -> int:
        return self._number if self._is_ours else self._real.get_current_device()

    def get_current_stream(self, device: int) -> int:
        return 0 if self._is_ours else self._real.get_current_stream(device)

    @property
    def _is_ours(self) -> bool:
        """Other threads launch what they launch."""
        return threading.get_ident() == self._thread


class _Nothing:
    """The stand-in that Triton launches for a kernel that it was told to do without."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None:
        pass

    def run(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Specialization:
    """A kernel with the types and constants of a launch."""

    module: str
    name: str
    key: str
    """Triton's: equal for launches that one compiled kernel serves."""


class Compilation:
    """Kernels that are compiled ahead. One in a process (`COMPILATION`), since Triton's hook is."""

    def __init__(self) -> None:
        self.first_uses = 0
        """Launches so far that had to wait for their kernel."""
        self._found: dict[Specialization, tuple[Any, str]] | None = None
        self._pending: dict[Specialization, Future[object]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def find(self, run: Callable[[], None]) -> dict[Specialization, tuple[Any, str]]:
        """The kernels that `run` would launch: Triton's functions, and what tells them what to compile. None is
        launched: what they would write stays as it is, so nothing may depend on it."""
        real, before = driver.active, self._found
        found: dict[Specialization, tuple[Any, str]] = {}
        self._found = found
        driver.set_active(_NoDevice(real))
        try:
            with _hooked(self._on_miss):
                run()
        finally:
            driver.set_active(real)
            self._found = before
        return found

    def begin(self, run: Callable[[], None], threads: int) -> None:
        """Compile what `run` would launch in threads, in that order. A launch waits for its own kernel alone."""
        self.stop()
        self.watch()
        found = self.find(run)
        device = driver.active.get_current_device()
        self._pool = ThreadPoolExecutor(
            threads, "compile", initializer=lambda: driver.active.set_current_device(device)
        )
        for each, (kernel, data) in found.items():
            loaded, *_ = kernel.device_caches[device]
            if each.key not in loaded:  # a model that slept has its kernels
                self._pending[each] = self._pool.submit(kernel.preload, data)
                self._pending[each].add_done_callback(_tell_of_failure)

    def watch(self) -> None:
        """Count first uses from now on."""
        knobs.runtime.jit_cache_hook = self._on_miss

    def wait(self) -> None:
        """Until everything is compiled. Raises what the compiler does."""
        for each in list(self._pending.values()):
            each.result()

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._pending = None, {}

    def _on_miss(self, *, key: str, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: Any) -> bool:  # noqa: A002
        """Triton asks before it compiles: whether it shall do without the kernel."""
        if is_manual_warmup:  # a thread compiles
            return False
        this = Specialization(fn.module, fn.name, key)
        if self._found is not None:
            self._found[this] = fn.jit_function, compile["specialization_data"]
            kernels, *_rest = fn.jit_function.device_caches[compile["device"]]
            kernels[key] = _NOTHING  # to be asked takes as long as some launches
            return True
        self.first_uses += 1
        pending = self._pending.pop(this, None)
        if pending is not None and not pending.cancel():  # a thread compiles it now: it is not compiled twice
            pending.exception()  # it is on disk then, or Triton compiles it here and raises why it cannot
        return False


COMPILATION = Compilation()


def _tell_of_failure(compiled: Future[object]) -> None:
    if not compiled.cancelled() and (error := compiled.exception()) is not None:
        _log.warning("a kernel could not be compiled ahead", exc_info=error)


@contextmanager
def _hooked(hook: Callable[..., bool]) -> Iterator[None]:
    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = hook
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before
