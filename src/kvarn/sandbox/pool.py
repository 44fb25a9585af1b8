"""Processes that share the work of one kind, and tenants that share the processes."""

from __future__ import annotations

import asyncio
import logging

from kvarn.fairness.semaphore import FairSemaphore
from kvarn.sandbox.errors import LimitPassedError, MemoryPassedError, ProcessEndedError
from kvarn.sandbox.process import SandboxLimits, SandboxProcess

_log = logging.getLogger(__name__)


class SandboxPool:
    """Does work in processes that are started as they are needed. One tenant has half of them at most."""

    def __init__(self, module: str, limits: SandboxLimits, size: int = 2, setup: bytes = b"") -> None:
        self._processes = [SandboxProcess(module, limits, setup) for _ in range(size)]
        self._idle = self._processes[::-1]
        """The one used last stands last: what it keeps is the newest."""
        self._turns = FairSemaphore(size, per_tenant=max(1, size // 2))

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._processes if each.pid is not None]

    async def call(self, tenant: str, request: bytes) -> bytes:
        """The reply to a request; a process lost without passing a limit is replaced once, as is one without enough
        memory left by the work before. A call that is cancelled ends its process. Raises LimitPassedError,
        ProcessEndedError, ClosedError."""
        async with self._turns.place(tenant):
            process = self._idle.pop()
            try:
                try:
                    return await process.call(request)
                except ProcessEndedError as error:
                    _log.warning("sandbox process %s; restarting it", error)
                except MemoryPassedError as error:
                    if not error.after_other_work:
                        raise
                    _log.info("sandboxed work did not finish %s in a used process; retrying in a new one", error)
                return await process.call(request)
            except LimitPassedError as error:
                _log.warning("sandboxed work did not finish %s", error)
                raise
            finally:
                self._idle.append(process)

    async def start(self) -> bytes:
        return await self._idle[-1].start()

    async def close(self) -> None:
        await asyncio.gather(*[process.close() for process in self._processes])
