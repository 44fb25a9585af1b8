"""Threads for text work that would hold up the event loop: few, and shared fairly.

Tokenizing a megabyte takes a good part of a second, and not all who ask for it pass the limits (counting tokens is
free). So tenants take turns at the threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from kvarn.fairness.semaphore import FairSemaphore

ResultT = TypeVar("ResultT")

INLINE_BYTES = 4096
"""Up to this length work is done on the event loop: a thread would cost more than it saves."""


class TextPool:
    """Runs text work: what is short here and now, what is long in one of so many threads."""

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor = executor
        self._threads = FairSemaphore(threads)

    async def run(self, tenant: str, size: int, work: Callable[[], ResultT]) -> ResultT:
        if size <= INLINE_BYTES:
            return work()
        loop = asyncio.get_running_loop()
        return await self._threads.run(tenant, lambda: loop.run_in_executor(self._executor, work))
