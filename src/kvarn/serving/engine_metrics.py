"""What the engines report, as Prometheus metrics, read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvarn.observe.admission import TIERS, priority_tier
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.wire.messages import EngineStats

_COUNTERS = {
    "kvarn_steps": ("step", "Forward passes."),
    "kvarn_prompt_tokens": ("prompt_tokens_total", "Prompt tokens computed."),
    "kvarn_cached_tokens": ("cached_tokens_total", "Prompt tokens taken from the prefix cache."),
    "kvarn_output_tokens": ("output_tokens_total", "Tokens generated."),
    "kvarn_preemptions": ("preemptions_total", "Running requests put back into the queue for want of KV blocks."),
    "kvarn_evictions": ("evictions_total", "Blocks evicted from the prefix cache."),
    "kvarn_aborts": ("aborts_total", "Requests aborted because their client left or had enough."),
    "kvarn_finished": ("finished_total", "Requests finished."),
    "kvarn_read_bytes": ("read_bytes_total", "Bytes of weights and cached tokens that the steps had to read."),
    "kvarn_operations": ("operations_total", "Operations that the steps had to do; a multiply-add is two."),
}

_GAUGES = {
    "kvarn_running_requests": ("running", "Sequences running."),
    "kvarn_batch_size": ("batch_seqs", "Sequences in the latest step."),
    "kvarn_batch_tokens": ("batch_tokens", "Tokens computed in the latest step, prefill and decode."),
    "kvarn_step_seconds": ("step_s", "Duration of the latest step."),
    "kvarn_kv_waste_ratio": ("kv_waste_ratio", "Allocated KV slots that hold no token, over all allocated slots."),
}


class MonotonicTotals:
    """Totals of one engine that keep growing when its process restarts and counts from zero again.

    A restart shows as a total (steps among them) that shrank. What an engine counted between the last reading and its
    death is not seen again; readings are at most a second apart.
    """

    def __init__(self) -> None:
        self._incarnation: object = None
        self._base: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self.restarts = 0

    def read(self, incarnation: object, totals: Mapping[str, int]) -> dict[str, int]:
        """Take a reading; return the totals over all incarnations, which never shrink."""
        if incarnation is not None and incarnation is not self._incarnation:
            self.restarts += self._incarnation is not None
            self._incarnation = incarnation
        if any(value < self._latest.get(name, 0) for name, value in totals.items()):
            for name, value in self._latest.items():
                self._base[name] = self._base.get(name, 0) + value
            self._latest = {}
        self._latest.update(totals)
        names = self._base.keys() | self._latest.keys()
        return {name: self._base.get(name, 0) + self._latest.get(name, 0) for name in names}


@dataclass(frozen=True, slots=True)
class _Reading:
    """A replica at the moment of a scrape."""

    labels: list[str]
    client: ReplicaClient
    stats: EngineStats
    totals: dict[str, int]
    restarts: int


class EngineCollector(Collector):
    """Turns the latest `EngineStats` of every replica into metrics at each scrape.

    Args:
        models: The replicas of each model, by their names. As long as each model has one, `model` alone labels them.
    """

    def __init__(self, models: Mapping[str, Mapping[str, ReplicaClient]]) -> None:
        several = any(len(replicas) > 1 for replicas in models.values())
        self._label_names = ("model", "replica") if several else ("model",)
        self._replicas = [
            ([model, name] if several else [model], client, MonotonicTotals())
            for model, replicas in models.items()
            for name, client in replicas.items()
        ]

    def observe(self) -> list[_Reading]:
        """Read the statistics now: what an engine counts after the latest reading is lost if it dies."""
        readings = []
        for labels, client, totals in self._replicas:
            stats = client.stats
            now = {family: int(getattr(stats, field)) for family, (field, _) in _COUNTERS.items()}
            now |= {f"kvarn_refused/{reason}": count for reason, count in stats.refused_total.items()}
            seen = totals.read(client.card, now)
            readings.append(_Reading(labels, client, stats, seen, totals.restarts))
        return readings

    def collect(self) -> Iterator[Metric]:
        """Read every engine once and yield its metrics."""
        readings = self.observe()
        up = self._gauge("kvarn_replica_up", "1 when the model's replica takes requests.")
        restarts = self._counter("kvarn_replica_restarts", "Restarts of the engine process.")
        for each in readings:
            up.add_metric(each.labels, float(each.client.state is ReplicaState.READY))
            restarts.add_metric(each.labels, each.restarts)
        yield from (up, restarts)
        for name, (field, help_text) in _GAUGES.items():
            gauge = self._gauge(name, help_text)
            for each in readings:
                gauge.add_metric(each.labels, float(getattr(each.stats, field)))
            yield gauge
        yield from self._memory(readings)
        yield self._queue_depth(readings)
        for name, (_, help_text) in _COUNTERS.items():
            counter = self._counter(name, help_text)
            for each in readings:
                counter.add_metric(each.labels, each.totals[name])
            yield counter
        refused = self._counter("kvarn_refused", "Requests the engine refused, by reason.", "reason")
        for each in readings:
            for key, count in each.totals.items():
                if key.startswith("kvarn_refused/"):
                    refused.add_metric([*each.labels, key.removeprefix("kvarn_refused/")], count)
        yield refused

    def _memory(self, readings: list[_Reading]) -> Iterator[Metric]:
        utilisation = self._gauge("kvarn_kv_utilisation", "Share of KV blocks held by running requests.")
        blocks = self._gauge(
            "kvarn_kv_blocks", "KV blocks: held by requests, held only by the prefix cache, free.", "state"
        )
        hits = self._gauge(
            "kvarn_prefix_hit_ratio", "Share of prompt tokens found in the prefix cache since the start."
        )
        for each in readings:
            stats, total = each.stats, each.stats.kv_blocks_total
            used = total - stats.kv_blocks_free
            utilisation.add_metric(each.labels, used / total if total else 0.0)
            blocks.add_metric([*each.labels, "used"], used)
            blocks.add_metric([*each.labels, "cached"], stats.kv_blocks_cached)
            blocks.add_metric([*each.labels, "free"], stats.kv_blocks_free - stats.kv_blocks_cached)
            prompt = stats.cached_tokens_total + stats.prompt_tokens_total
            hits.add_metric(each.labels, stats.cached_tokens_total / prompt if prompt else float("nan"))
        yield from (utilisation, blocks, hits)

    def _queue_depth(self, readings: list[_Reading]) -> Metric:
        family = self._gauge("kvarn_queue_depth", "Requests waiting, by priority tier.", "priority")
        for each in readings:
            depth = dict.fromkeys(TIERS, 0)
            for priority, count in each.stats.waiting_by_priority.items():
                depth[priority_tier(priority)] += count
            for tier, count in depth.items():
                family.add_metric([*each.labels, tier], count)
        return family

    def _gauge(self, name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, help_text, labels=[*self._label_names, *labels])

    def _counter(self, name: str, help_text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, help_text, labels=[*self._label_names, *labels])
