"""What the engines report, as Prometheus metrics, read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvarn.observe.admission import TIERS, priority_tier
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.wire.messages import EngineStats

_COUNTERS = {
    "kvarn_steps_total": ("step", "Forward passes."),
    "kvarn_prompt_tokens_total": ("prompt_tokens_total", "Prompt tokens computed."),
    "kvarn_cached_tokens_total": ("cached_tokens_total", "Prompt tokens taken from the prefix cache."),
    "kvarn_output_tokens_total": ("output_tokens_total", "Tokens generated."),
    "kvarn_preemptions_total": ("preemptions_total", "Running requests put back into the queue for want of KV blocks."),
    "kvarn_evictions_total": ("evictions_total", "Blocks evicted from the prefix cache."),
    "kvarn_aborts_total": ("aborts_total", "Requests aborted because their client left or had enough."),
    "kvarn_finished_total": ("finished_total", "Requests finished."),
    "kvarn_read_bytes_total": ("read_bytes_total", "Bytes of weights and cached tokens that the steps had to read."),
    "kvarn_operations_total": ("operations_total", "Operations that the steps had to do; a multiply-add is two."),
}

_GAUGES = {
    "kvarn_running_requests": ("running", "Sequences running."),
    "kvarn_batch_size": ("batch_seqs", "Sequences in the latest step."),
    "kvarn_batch_tokens": ("batch_tokens", "Tokens computed in the latest step, prefill and decode."),
    "kvarn_step_seconds": ("step_s", "Duration of the latest step."),
    "kvarn_kv_waste_ratio": ("kv_waste_ratio", "Allocated KV slots that hold no token, over all allocated slots."),
}


Values = float | Mapping[str, float]
"""Of one replica; by the value of one more label, where the metric has it."""


class EngineCollector(Collector):
    """Turns the latest `EngineStats` of every replica into metrics at each scrape. Its counters count since the
    engine's start.

    Args:
        models: The replicas of each model, by their names. As long as each model has one, `model` alone labels them.
    """

    def __init__(self, models: Mapping[str, Mapping[str, ReplicaClient]]) -> None:
        several = any(len(replicas) > 1 for replicas in models.values())
        self._label_names = ("model", "replica") if several else ("model",)
        self._replicas = [
            ((model, name) if several else (model,), client)
            for model, replicas in models.items()
            for name, client in replicas.items()
        ]

    def collect(self) -> Iterator[Metric]:
        """Read every engine once and yield its metrics."""
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield self._metric(gauge, "kvarn_replica_up", "1 when the model's replica takes requests.", _is_up)
        yield self._metric(counter, "kvarn_replica_restarts_total", "Restarts of the engine process.", _restarts)
        for name, (field, help_text) in _GAUGES.items():
            yield self._metric(gauge, name, help_text, _reader(field))
        yield self._metric(
            gauge, "kvarn_kv_utilisation", "Share of KV blocks held by running requests.", _kv_utilisation
        )
        help_text = "KV blocks: held by requests, held only by the prefix cache, free."
        yield self._metric(gauge, "kvarn_kv_blocks", help_text, _kv_blocks, "state")
        help_text = "Share of prompt tokens found in the prefix cache since the start."
        yield self._metric(gauge, "kvarn_prefix_hit_ratio", help_text, _prefix_hits)
        yield self._metric(gauge, "kvarn_queue_depth", "Requests waiting, by priority tier.", _queue_depth, "priority")
        for name, (field, help_text) in _COUNTERS.items():
            yield self._metric(counter, name, help_text, _reader(field))
        help_text = "Requests the engine refused, by reason."
        yield self._metric(counter, "kvarn_refused_total", help_text, _reader("refused_total"), "reason")

    def _metric(
        self,
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help_text: str,
        read: Callable[[ReplicaClient], Values],
        *labels: str,
    ) -> Metric:
        metric = family(name, help_text, labels=[*self._label_names, *labels])
        for own, client in self._replicas:
            values = read(client)
            if isinstance(values, Mapping):
                for label, value in values.items():
                    metric.add_metric([*own, label], value)
            else:
                metric.add_metric(own, values)
        return metric


def _is_up(client: ReplicaClient) -> float:
    return client.state is ReplicaState.READY


def _restarts(client: ReplicaClient) -> float:
    return max(0, client.starts - 1)


def _reader(field: str) -> Callable[[ReplicaClient], Values]:
    read: Callable[[EngineStats], Values] = attrgetter(field)
    return lambda client: read(client.stats)


def _kv_utilisation(client: ReplicaClient) -> float:
    total = client.stats.kv_blocks_total
    return (total - client.stats.kv_blocks_free) / total if total else 0.0


def _kv_blocks(client: ReplicaClient) -> Values:
    total, free, cached = client.stats.kv_blocks_total, client.stats.kv_blocks_free, client.stats.kv_blocks_cached
    return {"used": total - free, "cached": cached, "free": free - cached}


def _prefix_hits(client: ReplicaClient) -> float:
    prompt = client.stats.cached_tokens_total + client.stats.prompt_tokens_total
    return client.stats.cached_tokens_total / prompt if prompt else float("nan")


def _queue_depth(client: ReplicaClient) -> Values:
    depth = dict.fromkeys(TIERS, 0)
    for priority, count in client.stats.waiting_by_priority.items():
        depth[priority_tier(priority)] += count
    return depth
