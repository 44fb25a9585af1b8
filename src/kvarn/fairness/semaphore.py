"""Places that tenants share, however many requests one of them has waiting."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

ResultT = TypeVar("ResultT")


class FairSemaphore:
    """A number of places. They go round robin by tenant, first come, first served within each; a tenant whose place is
    given back goes behind the others that wait.

    Args:
        places: How many there are.
        per_tenant: How many one tenant may hold.
        times_free: A tenant may hold at most this many times what is left free: the dynamic thresholds that switches
            share their buffers by (Choudhury and Hahne, 1998), so that some places are always free. None: it may hold
            all.
    """

    def __init__(
        self, places: float = math.inf, *, per_tenant: float = math.inf, times_free: int | None = None
    ) -> None:
        self.places = places
        self.used = 0
        self._per_tenant = per_tenant
        self._times_free = times_free
        self._held = Counter[str]()
        """Places held by each tenant that holds any."""
        self._waiting = OrderedDict[str, deque[asyncio.Future[None]]]()
        """The tenant whose turn is next stands first."""

    def held(self, tenant: str) -> int:
        return self._held[tenant]

    def holders(self) -> set[str]:
        return set(self._held)

    def is_wanted(self, tenant: str) -> bool:
        """Whether somebody waits who would get a place that this tenant gives back."""
        waiting = (other for other, turns in self._waiting.items() if not all(turn.cancelled() for turn in turns))
        return any(other == tenant or self._held[other] < self._per_tenant for other in waiting)

    def try_acquire(self, tenant: str, places: int = 1) -> bool:
        """Take places if the tenant may have them now, past those that wait."""
        if not self._may_take(tenant, places):
            return False
        self._held[tenant] += places
        self.used += places
        return True

    async def acquire(self, tenant: str) -> None:
        """Wait for a place; `release` it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come already
                self.release(tenant)
            raise

    def release(self, tenant: str, places: int = 1) -> None:
        self.used -= places
        self._held[tenant] -= places
        if not self._held[tenant]:
            del self._held[tenant]
        if tenant in self._waiting:
            self._waiting.move_to_end(tenant)
        self._hand_out()

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None, None]:
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def run(self, tenant: str, start: Callable[[], asyncio.Future[ResultT]]) -> ResultT:
        """Wait for a place and start a job that keeps it to its end: a caller that is cancelled does not stop it."""
        await self.acquire(tenant)

        def done(job: asyncio.Future[ResultT]) -> None:
            if not job.cancelled():
                job.exception()  # raised below, if anybody still waits
            self.release(tenant)

        job = start()
        job.add_done_callback(done)
        return await asyncio.shield(job)

    def _may_take(self, tenant: str, places: int) -> bool:
        mine, free = self._held[tenant] + places, self.places - self.used - places
        within_share = self._times_free is None or mine <= self._times_free * free
        return free >= 0 and mine <= self._per_tenant and within_share

    def _hand_out(self) -> None:
        """Give free places to those that wait; a tenant that may hold no more keeps its turn."""
        passed_over: list[tuple[str, deque[asyncio.Future[None]]]] = []
        while self._waiting and self.used < self.places:
            tenant, turns = self._waiting.popitem(last=False)
            while turns and turns[0].cancelled():  # uses up no turn of the tenant's
                turns.popleft()
            if turns and not self.try_acquire(tenant):
                passed_over.append((tenant, turns))
                continue
            if turns:
                turns.popleft().set_result(None)
            if turns:
                self._waiting[tenant] = turns  # behind the others
        for tenant, turns in reversed(passed_over):
            self._waiting[tenant] = turns
            self._waiting.move_to_end(tenant, last=False)
