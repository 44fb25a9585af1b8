"""Jobs on the database, done by one gateway of a deployment at a time: the retention sweep, sums of what
organisations store, the bound of kept requests, and moves of file contents out of the database."""

from __future__ import annotations

import logging

from kvarn.config.platform import KeptConfig, RetentionConfig
from kvarn.jobs.named_jobs import NamedJob, NamedWorker
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.changes import delete_old_changes
from kvarn.store.repositories.chunks import delete_lost_chunks
from kvarn.store.repositories.contents import move_contents
from kvarn.store.repositories.kept_bounds import bound_kept
from kvarn.store.repositories.organization_deletion import delete_erased_usage
from kvarn.store.repositories.retention import delete_expired
from kvarn.store.repositories.stored_bytes import SUM_EVERY_S, sum_stored_bytes
from kvarn.store.repositories.tenants.console_sessions import delete_old_sessions

_MOVE_EVERY_S = 600.0
_BOUND_EVERY_S = 60.0

_log = logging.getLogger("kvarn.jobs")


def stored_bytes_worker(store: Store) -> NamedWorker:
    """Sums what organisations store; see `repositories/stored_bytes.py`."""

    async def work(_: NamedJob) -> None:
        await sum_stored_bytes(store)

    return NamedWorker("sums of stored bytes", store, "stored_bytes", work, lease_s=SUM_EVERY_S, periodic=True)


def kept_requests_worker(store: Store, config: KeptConfig) -> NamedWorker:
    """Bounds what is kept of requests; see `repositories/kept_bounds.py`."""

    async def work(_: NamedJob) -> None:
        if deleted := await bound_kept(store, config.max_rows, config.max_bytes):
            _log.debug("deleted kept requests beyond the bound", extra={"requests": deleted})

    return NamedWorker("bounds of kept requests", store, "kept_requests", work, lease_s=_BOUND_EVERY_S, periodic=True)


def content_worker(store: Store) -> NamedWorker:
    """Moves contents of files to `store.blobs`: those of an earlier version, or of before that was set."""

    async def work(_: NamedJob) -> None:
        if moved := await move_contents(store):
            _log.info("moved contents of files out of the database", extra={"files": moved})

    return NamedWorker("moves of file contents", store, "contents", work, lease_s=_MOVE_EVERY_S, periodic=True)


def retention_worker(store: Store, config: RetentionConfig) -> NamedWorker:
    """Sweeps once in an interval. If a kind of object could not be swept, the next process to look tries again."""

    async def sweep(job: NamedJob) -> None:
        swept = await delete_expired(store, config)
        await delete_old_changes(store)
        await delete_old_sessions(store)
        await delete_erased_usage(store)
        await delete_lost_chunks(store)
        deleted = {name: count for name, count in swept.deleted.items() if count}
        if deleted:
            _log.info("deleted expired objects", extra=deleted)
        for name, error in swept.failures.items():
            trace = None if isinstance(error, StoreAwayError) else error
            _log.warning("retention sweep of %s failed; will retry: %s", name, error, exc_info=trace)
        job.failed = bool(swept.failures)

    lease_s = config.sweep_interval_s
    return NamedWorker("retention sweeps", store, "retention", sweep, lease_s=lease_s, periodic=True)
