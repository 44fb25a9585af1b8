"""Metrics of the ledger and of `kvarn meter`. `docs/reference/metrics.md` explains each."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge


class MeteringMetrics:
    """Metrics of one gateway's ledger, shown in a registry, if any."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.events = counter(
            "kvarn_usage_events_total",
            "Usage events by outcome; `lost`: of requests whose gateway died.",
            ("outcome",),
        )
        self.spool_bytes = gauge("kvarn_usage_spool_bytes", "Usage events on disk that are not in the database.")
        self.ledger_lag = gauge(
            "kvarn_usage_ledger_lag_seconds", "Seconds for which finished events have been waiting for the database."
        )
        self.rejected = counter(
            "kvarn_usage_rejected_total",
            "Usage events that the database refuses as they are; kept in usage/rejected.",
        )
        self.dropped = counter(
            "kvarn_usage_dropped_total",
            "Usage events for which neither the database nor the disk nor memory had room; kept in the log only.",
        )
        self.outbox_rows = gauge("kvarn_usage_outbox_rows", "Usage events that the broker does not have yet.")
        self.outbox_lag = gauge("kvarn_usage_outbox_lag_seconds", "Age of the oldest event that the broker has not.")
        self.published = counter("kvarn_usage_published_total", "Usage events the broker took.")
        self.publish_errors = counter(
            "kvarn_usage_publish_errors_total", "Usage events the broker did not take at once."
        )
        self.budget_alerts = counter("kvarn_budget_alerts_total", "Budgets that passed their soft limit.", ("unit",))


class MeterMetrics:
    """Metrics of `kvarn meter`, shown in a registry, if any."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.billed = counter("kvarn_meter_billed_total", "Usage events counted.")
        self.repeats = counter("kvarn_meter_repeats_total", "Usage events that had been counted before.")
        self.unreadable = counter("kvarn_meter_unreadable_total", "Messages that are no usage events; left out.")
        self.lag_messages = gauge("kvarn_meter_lag_messages", "Messages not yet counted.")
        self.lag_seconds = gauge("kvarn_meter_lag_seconds", "Age of the newest counted event while others wait.")
