"""Metrics of tools that the platform runs. `docs/reference/metrics.md` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


class ToolMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.calls = Counter(
            "kvarn_tool_calls_total",
            "Calls of tools that the platform ran, by how they ended.",
            ("type", "outcome"),
            registry=registry,
        )
        self.seconds = Histogram(
            "kvarn_tool_seconds", "Time that calls of tools took.", ("type",), buckets=_SECONDS, registry=registry
        )
        self.rounds = Histogram(
            "kvarn_tool_rounds",
            "Times that a request with tools of the platform asked its model.",
            buckets=_ROUNDS,
            registry=registry,
        )
        self.limited = Counter(
            "kvarn_tool_limits_total",
            "Requests whose model was asked to answer without tools, by the limit that was reached.",
            ("limit",),
            registry=registry,
        )
