"""Who may write at once: few of one name at a time, whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from kvarn.store.errors import StoreBusyError


class WriterTurns:
    """Lets so many of each name in at a time; the others wait, first come, first served.

    Args:
        at_once: How many.
        wait_s: Seconds that one waits.
    """

    def __init__(self, at_once: int, wait_s: float) -> None:
        self._at_once = at_once
        self._wait_s = wait_s
        self._semaphores = WeakValueDictionary[str, asyncio.Semaphore]()
        """Gone when nobody has a turn or waits for one."""

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None, None]:
        """A turn for the block.

        Raises:
            StoreBusyError: None came in time.
        """
        semaphore = self._semaphores.setdefault(name, asyncio.Semaphore(self._at_once))
        try:
            async with asyncio.timeout(self._wait_s):
                await semaphore.acquire()
        except TimeoutError as error:
            raise StoreBusyError(f"no turn to write came within {self._wait_s:g} s") from error
        try:
            yield
        finally:
            semaphore.release()
