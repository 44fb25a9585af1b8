"""Metrics of the response cache. `docs/reference/metrics.md` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ResponseCacheMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.requests = Counter(
            "kvarn_response_cache_requests_total",
            "Requests of projects with a response cache, by what it did.",
            ("model", "result"),
            registry=registry,
        )
        self.seconds_saved = Counter(
            "kvarn_response_cache_seconds_saved_total",
            "Time that answers out of the cache took when a model wrote them.",
            ("model",),
            registry=registry,
        )
        self.comparisons = Counter(
            "kvarn_response_cache_comparisons_total",
            "Answers compared with that of the nearest question, by whether they were the same.",
            ("model", "result"),
            registry=registry,
        )
        self.bytes = Gauge(
            "kvarn_response_cache_bytes", "Answers in the memory of this gateway process.", registry=registry
        )
        self.faults = Counter(
            "kvarn_response_cache_faults_total", "Reads and writes of the cache's Redis that failed.", registry=registry
        )
