"""The background worker of a process: takes jobs that no process holds, runs some at once, and renews their leases.

A job is a row of the database with a holder and an expiry, its lease; a subclass of `Worker` says in which table. The
leases of a process that dies expire, and another process takes its jobs over. Clocks of two machines may differ, so a
job must bear being done twice, or be refused by the database once the lease is lost.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from kvarn.clock import SYSTEM_CLOCK
from kvarn.jobs.periodic import Periodic
from kvarn.store.errors import StoreAwayError

_log = logging.getLogger("kvarn.jobs")

StopReason = Literal["cancelled", "shutdown", "lost"]
"""Stopped by its client, by the end of this process, or because another process holds it now."""


@dataclass(slots=True, eq=False)
class Job:
    """A job that this process runs."""

    id: str
    organization_id: str
    """Its organisation; empty for jobs of the platform itself."""
    task: asyncio.Task[None] | None = field(default=None, kw_only=True)
    stop_reason: StopReason | None = field(default=None, kw_only=True)
    finishing: bool = field(default=False, kw_only=True)
    """Its end is being written, which ends its lease: a lease that cannot be renewed is not lost."""
    failed: bool = field(default=False, kw_only=True)
    """It ended in an unforeseen error."""

    async def stop(self, reason: StopReason, timeout_s: float | None = None) -> bool:
        """Cancel it, and return whether it has ended within `timeout_s`. The other reasons override a client's
        cancellation: they may come while the job's end is still being written."""
        assert self.task is not None
        if self.stop_reason in (None, "cancelled"):
            self.stop_reason = reason
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=timeout_s)
        return self.task.done()


JobT = TypeVar("JobT", bound=Job)


class Worker(ABC, Generic[JobT]):
    """Runs the jobs of one kind. A subclass says where their leases are and what a job does.

    Args:
        kind: What they are called in the log, in the plural.
        max_running: Jobs at once.
        poll_s: Seconds between two looks for jobs; leases are renewed as often.
    """

    def __init__(self, kind: str, *, max_running: int = 1, poll_s: float) -> None:
        self.running: dict[str, JobT] = {}
        """By id, in the order in which they began."""
        self._kind = kind
        self._max_running = max_running
        self._poll_s = poll_s
        self._reserved = Counter[str]()
        """Places for jobs that are not launched yet, by organisation."""
        self._polls = Periodic(kind, self.poll, poll_s)
        self._releases: set[asyncio.Task[None]] = set()

    # Each of these may raise `StoreAwayError`.

    @abstractmethod
    async def claim(self, free: int) -> Sequence[JobT]:
        """Take at most `free` jobs that no process holds. Called again until it returns none, and once with 0."""

    @abstractmethod
    async def renew(self, jobs: Sequence[JobT]) -> Collection[str]:
        """Renew leases; returns the ids of the jobs still held. Called at each poll, also without jobs."""

    @abstractmethod
    async def run(self, job: JobT) -> None:
        """Do one job. Cancelled by `Job.stop`."""

    @abstractmethod
    async def release(self, job: JobT) -> None:
        """Let another process take an ended job, if it is to go on; `job.stop_reason` says why it ended."""

    @property
    def free(self) -> int:
        return self._max_running - len(self.running) - self._reserved.total()

    def taken_by(self, organization_id: str) -> int:
        running = sum(job.organization_id == organization_id for job in self.running.values())
        return running + self._reserved[organization_id]

    @contextmanager
    def reserve(self, organization_id: str = "") -> Generator[None]:
        """Keep a place while a job is prepared that is launched as the last thing in the block."""
        self._reserved[organization_id] += 1
        try:
            yield
        finally:
            self._reserved[organization_id] -= 1
            self._reserved += Counter()  # drops those with none

    def start(self) -> None:
        self._polls.start()

    async def stop(self) -> None:
        """Stop every job and give its lease back, so that another process continues it at once."""
        await self._polls.stop()
        await asyncio.gather(*[job.stop("shutdown") for job in list(self.running.values())])
        await self.idle()

    async def idle(self) -> None:
        """Wait until no job runs and every lease is released."""
        while tasks := [*[job.task for job in self.running.values() if job.task is not None], *self._releases]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # their callbacks are run

    def wake(self) -> None:
        self._polls.wake()

    def launch(self, job: JobT) -> None:
        self.running[job.id] = job
        job.task = asyncio.create_task(self._work(job), name=f"{self._kind} {job.id}")
        job.task.add_done_callback(lambda _: self._ended(job))

    async def poll(self) -> None:
        """Renew leases, stop what was lost, and take jobs while there are places."""
        jobs = list(self.running.values())
        held = await self.renew(jobs)
        lost = [job for job in jobs if job.id not in held and job.id in self.running and not job.finishing]
        await asyncio.gather(*[job.stop("lost") for job in lost])
        deadline = SYSTEM_CLOCK.now() + self._poll_s  # leases are due for renewal
        while True:
            free = max(0, self.free)
            with self.reserve():  # no client's job takes the place meanwhile
                claimed = await self.claim(free)
                for job in claimed:
                    self.launch(job)
            if not claimed or self.free <= 0 or SYSTEM_CLOCK.now() >= deadline:
                return

    async def _work(self, job: JobT) -> None:
        try:
            await self.run(job)
        except StoreAwayError as error:
            _log.warning("%s: %s waits for the database: %s", self._kind, job.id, error)
        except Exception:
            job.failed = True
            _log.exception("%s: %s failed", self._kind, job.id)

    def _ended(self, job: JobT) -> None:
        self.running.pop(job.id, None)
        task = asyncio.create_task(self._release(job))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, job: JobT) -> None:
        try:
            await self.release(job)
        except StoreAwayError as error:
            _log.debug("%s: the lease of %s will expire by itself: %s", self._kind, job.id, error)
        except Exception:
            _log.exception("%s: %s could not be released", self._kind, job.id)
