"""Metrics of the ledger. `docs/metrics.md` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class MeteringMetrics:
    """Metrics of one gateway's ledger.

    Args:
        registry: Where they are shown; None: nowhere.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.events = Counter(
            "kvarn_usage_events_total",
            "Usage events by outcome; `lost`: of requests whose gateway died.",
            ("outcome",),
            registry=registry,
        )
        self.spool_bytes = Gauge(
            "kvarn_usage_spool_bytes", "Usage events on disk that are not in the database.", registry=registry
        )
        self.ledger_lag = Gauge(
            "kvarn_usage_ledger_lag_seconds",
            "Seconds for which finished events have been waiting for the database.",
            registry=registry,
        )
        self.rejected = Counter(
            "kvarn_usage_rejected_total",
            "Usage events that the database refuses as they are; kept in usage/rejected.",
            registry=registry,
        )
        self.dropped = Counter(
            "kvarn_usage_dropped_total",
            "Usage events for which neither the database nor the disk nor memory had room; kept in the log only.",
            registry=registry,
        )
        self.outbox_rows = Gauge(
            "kvarn_usage_outbox_rows", "Usage events that the broker does not have yet.", registry=registry
        )
        self.outbox_lag = Gauge(
            "kvarn_usage_outbox_lag_seconds", "Age of the oldest event that the broker has not.", registry=registry
        )
        self.published = Counter("kvarn_usage_published_total", "Usage events the broker took.", registry=registry)
        self.publish_errors = Counter(
            "kvarn_usage_publish_errors_total", "Usage events the broker did not take at once.", registry=registry
        )
        self.budget_alerts = Counter(
            "kvarn_budget_alerts_total", "Budgets that passed their soft limit.", ("unit",), registry=registry
        )
