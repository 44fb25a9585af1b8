"""An engine process that has done its imports, kept for the next start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from kvarn.fleet.launch.engine_process import EngineProcess


class PreloadedProcess:
    """Most of a small model's start is imports. After a start, another may follow soon: a process is made that imports
    meanwhile, and the next start takes it. It is ended if none comes."""

    DELAY_S = 1.0
    """Delay after a start, which has the machine to itself first."""
    KEPT_S = 60.0

    def __init__(self, spawn: Callable[[str], EngineProcess] = EngineProcess.spawn) -> None:
        self._spawn = spawn
        self._imports = ""
        self._process: EngineProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, imports: str) -> EngineProcess | None:
        """The process, where there is one that imports this module; another follows. Called at each start."""
        process, self._process = self._process, None
        if process is not None and (imports != self._imports or not process.runs):
            process.close()
            process = None
        self._imports = imports
        if not self._closed:
            self._after(self.DELAY_S, self._make)
        return process

    def close(self) -> None:
        """End the process, and make no other. Idempotent."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _make(self) -> None:
        with contextlib.suppress(OSError):  # the next start reports it
            self._process = self._spawn(self._imports)
            self._after(self.KEPT_S, self._end)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)
