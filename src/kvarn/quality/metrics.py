"""The counts of the quality monitor as Prometheus metrics, read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvarn.quality.monitor import QualityMonitor

_LABELS = ("model", "replica")


class QualityCollector(Collector):
    def __init__(self, watch: QualityMonitor) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        watch, counts = self._watch, self._watch.counts
        drifted = GaugeMetricFamily(
            "kvarn_replica_drifted", "1 where the replica answers golden prompts wrongly.", labels=_LABELS
        )
        for model, replica in watch.replicas:
            drifted.add_metric((model, replica), float(replica in watch.drifted))
        yield drifted
        probes = CounterMetricFamily(
            "kvarn_quality_probes_total", "Probes with golden prompts, by result.", labels=(*_LABELS, "result")
        )
        for labels, count in counts.results.items():
            probes.add_metric(labels, count)
        yield probes
        seconds = CounterMetricFamily(
            "kvarn_quality_probe_seconds_total", "Seconds from the beginning of probes to their end.", labels=_LABELS
        )
        for replica_labels, total in counts.seconds.items():
            seconds.add_metric(replica_labels, total)
        yield seconds
        passed = GaugeMetricFamily(
            "kvarn_quality_passed_timestamp_seconds", "Unix time of the last probe that was passed.", labels=_LABELS
        )
        for replica_labels, at in counts.passed_at.items():
            passed.add_metric(replica_labels, at)
        yield passed
