"""One process that does work whose time and memory are bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kvarn.sandbox.errors import ClosedError, LimitPassedError, MemoryPassedError, ProcessEndedError
from kvarn.sandbox.worker import OUT_OF_MEMORY, TOLD

_START_TIMEOUT_S = 60.0
"""For the interpreter and its imports: some tenths of a second, unless the machine is very busy."""

_ENVIRONMENT = frozenset({"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TZ", "LANG"})
"""Variables that the process inherits: where Python and its libraries are, and the time zone for templates."""

_WALL_FACTOR = 5
"""The process ends itself when it has used its time of a processor, which may take so many times as long on a busy
machine; one that waits in place of computing is killed then."""

_BUFFER_BYTES = 1024 * 1024

OnTold = Callable[[bytes], None]
"""Hears what a piece of work tells before its reply (`kvarn.sandbox.worker.tell`)."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one piece of work."""

    timeout_s: float = 2.0  # seconds of a processor
    memory_bytes: int = 512 * 1024 * 1024
    """Address space of the process, some 25 to 80 MiB of which are its own."""


class SandboxProcess:
    """Does one piece of work at a time, by the module's `answer` (see `kvarn.sandbox.worker`). It is started when
    needed, and killed when it passes a limit. Belongs to one event loop. `setup` is work that comes first at each
    start."""

    def __init__(self, module: str, limits: SandboxLimits, setup: bytes = b"") -> None:
        self._module = module
        self._limits = limits
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._restart: asyncio.Task[None] | None = None
        self._closed = False
        self._has_worked = False
        """Whether the process has done a piece of work: what that left there takes memory, too."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def call(self, request: bytes, on_told: OnTold | None = None) -> bytes:
        """The reply to a request. `on_told` gets what the work tells before. A call that is cancelled ends the
        process. Raises LimitPassedError (MemoryPassedError for memory), ProcessEndedError, ClosedError."""
        await self.start()
        try:
            reply = await self._exchange(request, self._limits.timeout_s, on_told)
        except BaseException:
            self._restart = asyncio.create_task(self._start_again())
            raise
        self._has_worked = True
        return reply

    async def start(self) -> bytes:
        """Start the process; does nothing where it runs. Returns the reply to `setup`. Raises as `call` does."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return b""
            if self._closed:
                raise ClosedError("the server is shutting down")
            timeout_s, memory_bytes = self._limits.timeout_s, self._limits.memory_bytes
            arguments = ["-P", "-m", "kvarn.sandbox.worker", self._module, str(memory_bytes), str(timeout_s)]
            # A session of its own: Ctrl-C in the terminal reaches the gateway only, which then lets requests finish.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_BUFFER_BYTES,
                start_new_session=True,
                # None of the server's secrets; what the interpreter needs.
                env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
            )
            self._has_worked = False
            try:
                if self._closed:  # meanwhile: `close` has not seen this process
                    raise ClosedError("the server is shutting down")
                await self._exchange(b"", _START_TIMEOUT_S)
                return await self._exchange(self._setup, timeout_s) if self._setup else b""
            except BaseException:
                await self._kill()
                raise

    async def close(self) -> None:
        self._closed = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        await self._kill()

    async def _start_again(self) -> None:
        """At once, so that the next call does not wait for it; what is wrong is told to that."""
        with suppress(LimitPassedError, ProcessEndedError, ClosedError, OSError):
            await self.start()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended
                process.kill()
            await process.wait()

    async def _exchange(self, request: bytes, timeout_s: float, on_told: OnTold | None = None) -> bytes:
        """Send a request, if there is one, and read a reply. Where there is none the process is gone."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            # The process ends itself at the time limit: were it this side's clock, work that is done would count as
            # late whenever the event loop was held up.
            async with asyncio.timeout(_WALL_FACTOR * timeout_s):
                if request:
                    process.stdin.write(len(request).to_bytes(8, "big"))
                    process.stdin.write(request)
                    await process.stdin.drain()
                while (size := int.from_bytes(await process.stdout.readexactly(8), "big")) & TOLD:
                    told = await process.stdout.readexactly(size ^ TOLD)
                    if on_told is not None:
                        on_told(told)
                return await process.stdout.readexactly(size)
        except TimeoutError:
            await self._kill()
            raise _time_error(timeout_s, request) from None
        except (OSError, asyncio.IncompleteReadError):
            self._process = None
            status = await process.wait()  # not killed first: that may take the status from asyncio
            if status == -signal.SIGPROF:
                raise _time_error(timeout_s, request) from None
            if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # the latter is how libraries end without memory
                mib = self._limits.memory_bytes // 2**20
                message = f"in {mib} MiB of memory (gateway.client_work_memory_bytes)"
                raise MemoryPassedError(message, after_other_work=self._has_worked) from None
            raise ProcessEndedError(status) from None
        except asyncio.CancelledError:
            await self._kill()  # its reply would be taken for that to the next request
            raise


def _time_error(timeout_s: float, request: bytes) -> LimitPassedError:
    setting = " (gateway.client_work_timeout_s)" if request else ""
    return LimitPassedError(f"within {timeout_s:g} s{setting}")
