"""Decisions of this gateway process about replicas, and its knowledge of their caches, as metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvarn.catalog.models import ServedModel

_LABELS = ("model", "replica")


class RoutingCollector(Collector):
    """Reads the routers at each scrape; models with one replica have none.

    Args:
        models: What is served, by name.
    """

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        picked = CounterMetricFamily(
            "kvarn_routing_requests", "Requests for which this replica was chosen among several.", labels=_LABELS
        )
        expected = CounterMetricFamily(
            "kvarn_routing_expected_cached_tokens",
            "Tokens of their prompts that it was thought to have.",
            labels=_LABELS,
        )
        known = GaugeMetricFamily(
            "kvarn_routing_known_blocks", "Cached blocks that the replica has told of.", labels=_LABELS
        )
        served = [version for model in list(self._models.values()) for version in model.all_versions]
        for router, model in [(each.replicas.router, each.name) for each in served]:
            for name, candidate in {} if router is None else router.candidates.items():
                picked.add_metric((model, name), candidate.picked_total)
                expected.add_metric((model, name), candidate.expected_cached_total)
                blocks = None if router is None else router.known_blocks(name)
                if blocks is not None:
                    known.add_metric((model, name), blocks)
        yield from (picked, expected, known)
