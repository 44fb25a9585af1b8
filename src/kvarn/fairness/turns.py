"""Places that tenants take in turns, however many requests one of them has waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

ResultT = TypeVar("ResultT")


class Turns:
    """A number of places, handed out round robin among tenants and first come, first served within each.

    Args:
        places: How many there are.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting = OrderedDict[str, deque[asyncio.Future[None]]]()
        """The tenant whose turn is next stands first."""

    async def take(self, tenant: str) -> None:
        """Wait for a place; `give_back` it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come already
                self.give_back()
            raise

    def give_back(self) -> None:
        """A place is free again."""
        self._free += 1
        self._hand_out()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None, None]:
        """A place for as long as the block lasts."""
        await self.take(tenant)
        try:
            yield
        finally:
            self.give_back()

    async def run(self, tenant: str, start: Callable[[], asyncio.Future[ResultT]]) -> ResultT:
        """Wait for a place and start a job that keeps it to its end: whoever leaves meanwhile does not stop the job."""
        await self.take(tenant)
        job = start()
        job.add_done_callback(self._done)
        return await asyncio.shield(job)

    def _done(self, job: asyncio.Future[ResultT]) -> None:
        if not job.cancelled():
            job.exception()  # told to whoever waits, if anybody still does
        self.give_back()

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            while line and line[0].cancelled():  # who has left uses up no turn of the tenant's
                line.popleft()
            if line:
                self._free -= 1
                line.popleft().set_result(None)
            if line:
                self._waiting[tenant] = line  # behind the others
