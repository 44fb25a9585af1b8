"""The billing tables, built from the ledger without Kafka."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.repositories.organization_deletion import delete_erased_usage
from kvarn.store.repositories.usage import billing

BATCH_EVENTS = 500
"""Counted in one transaction."""


async def bill_ledger(store: Store) -> int:
    """Count all events of the ledger that are not counted yet; returns how many there were.

    Raises:
        StoreAwayError: The database does not answer; what was counted stays counted.
    """
    total = 0
    async for events in billing.unbilled(store):
        for start in range(0, len(events), BATCH_EVENTS):
            total += await billing.bill(store, events[start : start + BATCH_EVENTS])
    await delete_erased_usage(store)
    return total
