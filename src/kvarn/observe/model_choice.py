"""Metrics of model choice: routes, fallbacks, shadows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_AGREEMENT = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1.0)
_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class ModelChoiceMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.chosen = Counter(
            "kvarn_route_requests_total",
            "Requests for a route, by the model that was chosen and what decided.",
            ("route", "model", "reason"),
            registry=registry,
        )
        self.fallbacks = Counter(
            "kvarn_fallbacks_total",
            "Requests that another model was given, and why.",
            ("model", "fallback", "reason"),
            registry=registry,
        )
        self.shadows = Counter(
            "kvarn_shadow_requests_total",
            "Copies of requests for a shadow, by what came of them.",
            ("route", "model", "outcome"),
            registry=registry,
        )
        self.shadow_seconds = Histogram(
            "kvarn_shadow_seconds",
            "Time to the first token and to the end, of the answer and of its copy.",
            ("route", "model", "answer", "stage"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.shadow_agreement = Histogram(
            "kvarn_shadow_agreement_ratio",
            "Part of the longer text of an answer and its copy that both begin with.",
            ("route", "model"),
            buckets=_AGREEMENT,
            registry=registry,
        )
