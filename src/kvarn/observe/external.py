"""Metrics of models that other servers run."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

_STATES = {"closed": 0.0, "half_open": 0.5, "open": 1.0}


class ExternalMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.requests = Counter(
            "kvarn_external_requests_total",
            "Requests sent to external replicas, by what came of them.",
            ("model", "replica", "outcome"),
            registry=registry,
        )
        self.retries = Counter(
            "kvarn_external_retries_total", "Requests sent again, before a first token.", ("model",), registry=registry
        )
        self.estimated = Counter(
            "kvarn_external_estimated_total",
            "Answers whose tokens were estimated, since the server did not report them.",
            ("model",),
            registry=registry,
        )
        self._breakers = Gauge(
            "kvarn_circuit_breaker_open",
            "Circuit breakers of external replicas: 0 closed, 0.5 half open, 1 open.",
            ("model", "replica"),
            registry=registry,
        )

    def add_breaker(self, model: str, replica: str, state: Callable[[], str]) -> None:
        self._breakers.labels(model, replica).set_function(lambda: _STATES[state()])
