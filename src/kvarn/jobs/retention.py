"""The retention sweep: now and then one gateway of a deployment deletes what has been kept for long enough."""

from __future__ import annotations

import asyncio
import logging

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.repositories import leases
from kvarn.store.repositories.retention.sweep import delete_expired

_LEASE = "retention"
_LOOKS = 4
"""Times in an interval that each gateway looks whether a sweep is due."""

_log = logging.getLogger("kvarn.gateway")


async def sweep_forever(store: Store, config: RetentionConfig) -> None:
    """Sweep whenever it is due, until cancelled."""
    while True:
        try:
            await sweep_if_due(store, config)
        except StoreAwayError as error:
            _log.warning("the retention sweep waits for the database: %s", error)
        except Exception:
            _log.exception("the retention sweep failed; it is tried again")
        await asyncio.sleep(config.sweep_interval_s / _LOOKS)


async def sweep_if_due(store: Store, config: RetentionConfig) -> bool:
    """Delete what has expired, unless some gateway did so in this interval; whether it was due.

    The lease is taken for a whole interval and kept: it says when the next sweep is due, and that only one gateway
    begins it. Where a kind could not be swept it is given back, and whoever looks next tries again.

    Raises:
        StoreAwayError: The database does not answer.
    """
    holder = new_id("sweep-")
    if not await leases.take(store, _LEASE, holder, config.sweep_interval_s):
        return False
    swept = await delete_expired(store, config)
    deleted = {name: count for name, count in swept.deleted.items() if count}
    if deleted:
        _log.info("deleted what had expired", extra=deleted)
    for name, error in swept.failures.items():
        trace = None if isinstance(error, StoreAwayError) else error
        _log.warning("the retention sweep left %s, and tries again: %s", name, error, exc_info=trace)
    if swept.failures:
        await leases.give_back(store, _LEASE, holder)
    return True
