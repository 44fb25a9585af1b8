"""Metrics of admission. `docs/reference/metrics.md` explains each to an operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)
_ERRORS = (-5, -2, -1, -0.5, -0.25, -0.1, -0.05, -0.02, 0, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)

TIERS = ("interactive", "standard", "batch")
"""Names of the priority tiers, best first; see `priority_tier`."""


def priority_tier(priority: int) -> str:
    return "interactive" if priority <= 0 else "standard" if priority < 10 else "batch"


class AdmissionMetrics:
    def __init__(
        self, registry: CollectorRegistry | None = None, slo_missed: Callable[[str], None] = lambda model: None
    ) -> None:
        """`registry`: where they are shown; nowhere without one. `slo_missed` hears of each generation request with
        latency targets that is refused, with its model."""
        self.slo_missed = slo_missed
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._waiting: dict[str, dict[str, dict[int, int]]] = {}
        self._requests = counter(
            "kvarn_admission_requests_total",
            "Requests by what admission decided on them.",
            ("model", "tier", "decision"),
        )
        self._shed = counter("kvarn_admission_shed_total", "Requests turned away, by reason.", ("model", "reason"))
        self.length = gauge("kvarn_admission_queue_length", "Requests waiting at the gateway.", ("model", "tier"))
        self._wait = histogram(
            "kvarn_admission_wait_seconds",
            "Wait at the gateway of requests that went to the engine.",
            ("model", "tier"),
            buckets=_WAITS,
        )
        self._error = histogram(
            "kvarn_admission_ttft_error_seconds",
            "Time to first token less what was predicted when the request went to the engine.",
            ("model",),
            buckets=_ERRORS,
        )

    def decided(self, model: str, priority: int, decision: str) -> None:
        """A request was `admitted`, `queued` (and perhaps admitted later), `degraded` or `shed`."""
        self._requests.labels(model, priority_tier(priority), decision).inc()

    def shed(self, model: str, priority: int, reason: str) -> None:
        self.decided(model, priority, "shed")
        self._shed.labels(model, reason).inc()

    def waited(self, model: str, priority: int, seconds: float) -> None:
        self._wait.labels(model, priority_tier(priority)).observe(seconds)

    def waiting(self, model: str, replica: str, by_priority: dict[int, int]) -> None:
        self._waiting.setdefault(model, {})[replica] = by_priority
        lengths = dict.fromkeys(TIERS, 0)
        for waiting in self._waiting[model].values():
            for priority, count in waiting.items():
                lengths[priority_tier(priority)] += count
        for tier, length in lengths.items():
            self.length.labels(model, tier).set(length)

    def gone(self, model: str, replica: str) -> None:
        """Nothing waits for a replica any more."""
        if self._waiting.get(model, {}).pop(replica, None):
            self.waiting(model, replica, {})
            del self._waiting[model][replica]

    def first_token(self, model: str, predicted_s: float, actual_s: float) -> None:
        self._error.labels(model).observe(actual_s - predicted_s)
