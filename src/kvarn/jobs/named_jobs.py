"""Jobs without a row of their own: one process of a deployment at a time does the work of a name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from kvarn.jobs.worker import Job, Worker
from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.repositories import leases


@dataclass(slots=True, eq=False)
class NamedJob(Job):
    """A job whose lease is a row of the table `leases`."""

    holder: str


class NamedWorker(Worker[NamedJob]):
    """The worker of one named job.

    Args:
        kind: See `Worker`.
        store: The database.
        name: Of the job.
        work: Does it.
        lease_s: Seconds after which another process takes it over; renewed four times in that.
        periodic: Keep the lease of a job that succeeded, which says when the job is due again.
    """

    def __init__(
        self,
        kind: str,
        store: Store,
        name: str,
        work: Callable[[NamedJob], Awaitable[None]],
        *,
        lease_s: float,
        periodic: bool = False,
    ) -> None:
        super().__init__(kind, poll_s=lease_s / 4)
        self._store = store
        self._name = name
        self._do = work
        self._lease_s = lease_s
        self._periodic = periodic

    async def claim(self, free: int) -> Sequence[NamedJob]:
        holder = new_id("job-")  # a new one each time: a lease that is kept is not taken again by its own process
        if not free or self.running or not await leases.take(self._store, self._name, holder, self._lease_s):
            return []
        return [NamedJob(self._name, "", holder)]

    async def renew(self, jobs: Sequence[NamedJob]) -> Collection[str]:
        return [job.id for job in jobs if await leases.take(self._store, self._name, job.holder, self._lease_s)]

    async def run(self, job: NamedJob) -> None:
        await self._do(job)

    async def release(self, job: NamedJob) -> None:
        """Give the lease back, unless the job rests until it expires."""
        if not self._periodic or job.failed or job.stop_reason is not None:
            await leases.give_back(self._store, self._name, job.holder)
