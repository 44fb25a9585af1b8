"""One look of a gateway at the retention sweep."""

from __future__ import annotations

from kvarn.config.platform import RetentionConfig
from kvarn.jobs.database_jobs import retention_worker
from kvarn.store.engine import Store


async def sweeps(store: Store, config: RetentionConfig) -> bool:
    """Whether it was due, and was done."""
    worker = retention_worker(store, config)
    await worker.poll()
    was_due = bool(worker.running)
    await worker.idle()
    return was_due
