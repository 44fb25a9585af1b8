"""Metrics of the database. `docs/reference/metrics.md` explains each to an operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Gauge


class StoreMetrics:
    """Metrics of the database. `registry`: shows them; None: none does."""

    def __init__(
        self, registry: CollectorRegistry | None, is_away: Callable[[], bool], is_read_only: Callable[[], bool]
    ) -> None:
        gauge = partial(Gauge, registry=registry)
        self.away = gauge("kvarn_store_away", "1 while the database does not answer.")
        self.away.set_function(lambda: float(is_away()))
        self.read_only = gauge("kvarn_store_read_only", "1 while the database takes no writes.")
        self.read_only.set_function(lambda: float(is_read_only()))
        self.nearly_full = gauge(
            "kvarn_store_nearly_full_organizations",
            "Organisations that have stored more than four fifths of what they may.",
        )
