"""The retention sweep: now and then one gateway of a deployment deletes what has been kept for long enough."""

from __future__ import annotations

import logging

from kvarn.config.platform import RetentionConfig
from kvarn.jobs.named_jobs import NamedJob, NamedLease
from kvarn.jobs.worker import Worker
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.retention import delete_expired

_POLLS = 4
"""Times in an interval that each gateway looks whether a sweep is due."""

_log = logging.getLogger("kvarn.jobs")


def retention_worker(store: Store, config: RetentionConfig) -> Worker[NamedJob]:
    """Sweeps once in an interval. Where a kind of object could not be swept, whoever looks next tries again."""

    async def sweep(job: NamedJob) -> None:
        swept = await delete_expired(store, config)
        deleted = {name: count for name, count in swept.deleted.items() if count}
        if deleted:
            _log.info("deleted what had expired", extra=deleted)
        for name, error in swept.failures.items():
            trace = None if isinstance(error, StoreAwayError) else error
            _log.warning("the retention sweep left %s, and tries again: %s", name, error, exc_info=trace)
        job.failed = bool(swept.failures)

    interval_s = config.sweep_interval_s
    lease = NamedLease(store, "retention", interval_s, periodic=True)
    return Worker("retention sweeps", lease, sweep, poll_s=interval_s / _POLLS)
