"""Metrics of the limits. `docs/reference/metrics.md` explains each to an operator."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_RATIOS = (0.1, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 5, 10)


class LimitMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.limited = counter(
            "kvarn_limited_requests_total", "Requests refused by a limit, by what was exhausted.", ("model", "kind")
        )
        self.budget_refusals = counter(
            "kvarn_budget_refusals_total",
            "Requests refused since a budget was spent, or would have been passed.",
            ("unit",),
        )
        self.reserved = counter(
            "kvarn_limit_reserved_tokens_total", "Tokens reserved for requests that ended.", ("model",)
        )
        self.used = counter("kvarn_limit_used_tokens_total", "Tokens these requests used.", ("model",))
        self.estimate_ratio = histogram(
            "kvarn_limit_estimate_ratio",
            "Tokens of an answer over the tokens expected, where the client set no bound.",
            ("model",),
            buckets=_RATIOS,
        )
        self.redis_away = gauge(
            "kvarn_limits_redis_away", "1 while limits are configured to be in Redis and it is away."
        )
        self.redis_seconds = histogram(
            "kvarn_limits_redis_seconds", "Time Redis took to answer a decision.", buckets=_SECONDS
        )
        self.owed = gauge("kvarn_limits_owed_settlements", "Settlements that wait for Redis to come back.")
        self.lost = counter("kvarn_limits_lost_settlements_total", "Settlements given up: Redis was away too long.")
