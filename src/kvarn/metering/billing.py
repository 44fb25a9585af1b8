"""The billing tables without Kafka, and what an operator sees of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from kvarn.store.engine import Store
from kvarn.store.repositories.organization_deletion import delete_erased_usage
from kvarn.store.repositories.usage import billing

BATCH_EVENTS = 500
"""Counted in one transaction."""


class MeterMetrics:
    """Metrics of `kvarn meter`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.billed = Counter("kvarn_meter_billed_total", "Usage events counted.", registry=registry)
        self.repeats = Counter(
            "kvarn_meter_repeats_total",
            "Usage events that had been counted before.",
            registry=registry,
        )
        self.unreadable = Counter(
            "kvarn_meter_unreadable_total", "Messages that are no usage events; left out.", registry=registry
        )
        self.lag_messages = Gauge("kvarn_meter_lag_messages", "Messages not yet counted.", registry=registry)
        self.lag_seconds = Gauge(
            "kvarn_meter_lag_seconds", "Age of the newest counted event while others wait.", registry=registry
        )


async def bill_ledger(store: Store) -> int:
    """Count all events of the ledger that are not counted yet, without Kafka; how many there were.

    Raises:
        StoreAwayError: The database does not answer; what was counted stays counted.
    """
    total = 0
    async for events in billing.unbilled(store):
        for start in range(0, len(events), BATCH_EVENTS):
            total += await billing.bill(store, events[start : start + BATCH_EVENTS])
    await delete_erased_usage(store)
    return total
