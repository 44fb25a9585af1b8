"""Work that a process repeats for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kvarn.store.errors import StoreAwayError

_log = logging.getLogger("kvarn.jobs")


class Periodic:
    """Repeats some work. A failure is logged, and the work tried again.

    Args:
        what: The work, in the log: a plural.
        work: Done once at the start, and again after each pause.
        every_s: The pause.
        retry_s: The pause after a failure; None: the same.
    """

    def __init__(
        self, what: str, work: Callable[[], Awaitable[None] | None], every_s: float, retry_s: float | None = None
    ) -> None:
        self._what = what
        self._work = work
        self._every_s = every_s
        self._retry_s = every_s if retry_s is None else retry_s
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        self._task = asyncio.create_task(self._repeat(), name=self._what)

    def wake(self) -> None:
        """Do it at once, or once more if it is under way."""
        self._woken.set()

    async def stop(self) -> None:
        """Cancel what is under way. May be called again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _repeat(self) -> None:
        away = False
        while True:
            self._woken.clear()
            pause_s = self._retry_s
            try:
                if (doing := self._work()) is not None:
                    await doing
                away, pause_s = False, self._every_s
            except StoreAwayError as error:
                _log.log(logging.DEBUG if away else logging.WARNING, "%s wait for the database: %s", self._what, error)
                away = True
            except Exception:
                _log.exception("%s failed; will retry", self._what)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
