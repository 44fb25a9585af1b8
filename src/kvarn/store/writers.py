"""Who may write at once: few of one organization at a time, whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from kvarn.fairness.semaphore import FairSemaphore
from kvarn.store.errors import StoreBusyError


class WriterSlots:
    """Lets so many writers of each organization in at a time; the others wait, first come, first served.

    Args:
        per_organization: How many.
        wait_s: Seconds that one waits.
    """

    def __init__(self, per_organization: int, wait_s: float) -> None:
        self._slots = FairSemaphore(per_tenant=per_organization)
        self._wait_s = wait_s

    @asynccontextmanager
    async def of(self, organization_id: str) -> AsyncGenerator[None, None]:
        """A slot for the block.

        Raises:
            StoreBusyError: None came in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire(organization_id)
        except TimeoutError as error:
            raise StoreBusyError(f"no turn to write came within {self._wait_s:g} s") from error
        try:
            yield
        finally:
            self._slots.release(organization_id)
