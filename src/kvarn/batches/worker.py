"""The gateway's work on batches: takes those that no gateway works on, as many at once as it may, and renews their
leases.

No batch keeps another from running: where all places are taken and a batch waits, one is preempted, and goes on later.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence

from kvarn.batches.job import BatchJob, EndReason
from kvarn.batches.run import BatchRun
from kvarn.clock import SYSTEM_CLOCK
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.jobs.worker import Worker
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.ids import new_id
from kvarn.store.repositories.batches import batches as stored
from kvarn.store.repositories.batches.batches import OVER, BatchStatus, LeaseLostError
from kvarn.store.repositories.tenants.principals import find_bearer

STALLED_S = 5.0
"""A batch none of whose lines has been in an engine for so long gives its place to one that waits."""
REST_S = 5.0
"""Seconds after which a preempted batch may go on."""
_REST_AFTER_FAILURE_S = 60.0
"""The same after a run that ended in an unforeseen error."""

_log = logging.getLogger("kvarn.batches")


class BatchWorker(Worker[BatchJob]):
    """Runs batches beside the requests of clients."""

    def __init__(self, serving: ResponsesContext) -> None:
        config = serving.config.batches
        super().__init__("batches", max_running=config.max_running, poll_s=min(config.poll_s, config.lease_s / 4))
        self.holder = new_id("gw-")
        self._serving = serving
        self._store = serving.store
        self._config = config
        self._places: dict[str, FairSemaphore] = {}
        self._losses: dict[str, Counter[int]] = {}
        """Losses of batches that this gateway has let go unfinished."""

    async def claim(self, free: int) -> Sequence[BatchJob]:
        if not free:
            await self._preempt(list(self.running.values()))
            return []
        rows = await stored.claim_batches(self._store, self.holder, self._config.lease_s, free)
        return [
            BatchJob(row.id, row.organization_id, self.holder, row, losses=self._losses.pop(row.id, Counter()))
            for row in rows
            if row.id not in self.running
        ]

    async def renew(self, jobs: Sequence[BatchJob]) -> Collection[str]:
        """Renew their leases, and see what became of each.

        One small write a batch and second, for which a lost lease, a cancelled batch and a revoked key are known within
        that second.
        """
        held = []
        for job in jobs:
            try:
                await self.refresh(job)
            except LeaseLostError:
                continue
            held.append(job.id)
        return held

    async def release(self, job: BatchJob) -> None:
        if job.losses and job.row.status not in OVER:
            self._losses[job.id] = job.losses
        rest_s = 0.0
        if job.failed:
            rest_s = _REST_AFTER_FAILURE_S
        elif job.preempted.is_set() and not job.stop_reason:
            rest_s = REST_S
        until = math.ceil(self._store.now() + rest_s) if rest_s else None
        await stored.release_batch(self._store, self.holder, job.id, until)

    async def refresh(self, job: BatchJob) -> None:
        """Renew the lease, and see whether the work shall go on. Raises `LeaseLostError`."""
        async with job.changing:
            job.row = await stored.renew_lease(self._store, self.holder, job.id, self._config.lease_s)
        bearer = await find_bearer(self._store, job.owner, job.row.key_id)
        job.principal = bearer or job.principal
        in_progress = job.row.status == BatchStatus.IN_PROGRESS
        job.full = in_progress and await self._serving.storage_quota.is_full(job.organization_id)
        if job.row.status == BatchStatus.CANCELLING:
            job.end(EndReason.CANCELLED)
        elif bearer is None:
            job.end(EndReason.KEY_GONE)
        elif self._store.now() >= job.row.expires_at:
            job.end(EndReason.EXPIRED)
        elif job.full:
            job.preempt()

    async def run(self, job: BatchJob) -> None:
        try:
            await self.refresh(job)
            await BatchRun(self._serving, job, self._places_now()).run()
        except* LeaseLostError:
            _log.warning("batch %s was taken over by another gateway", job.id)

    def _places_now(self) -> dict[str, FairSemaphore]:
        """Places for lines in flight, of each model that is served now, and under the empty name for all others."""
        names = [*(model.name for model in self._serving.models), ""]
        for name in set(names) - self._places.keys():
            self._places[name] = FairSemaphore(self._config.max_in_flight)
        return {name: self._places[name] for name in names}

    async def _preempt(self, jobs: list[BatchJob]) -> None:
        """Preempt a batch where another one waits: the latest of the organization with the most places, where one with
        none waits; else one that makes no progress."""
        now = SYSTEM_CLOCK.now()
        for job in jobs:
            job.note_progress(now)
        waiting = await stored.waiting_organizations(self._store)
        if not waiting or not jobs or any(job.preempted.is_set() for job in jobs):
            return
        places = Counter(job.organization_id for job in jobs)
        largest, count = places.most_common(1)[0]
        if count > 1 and waiting - places.keys():
            job = [job for job in jobs if job.organization_id == largest][-1]
        else:
            job = min(jobs, key=lambda job: job.progress_at)
            if now - job.progress_at < STALLED_S:
                return
        job.preempt()
        _log.info("batch %s is preempted for another one", job.id)
