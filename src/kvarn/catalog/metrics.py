"""Reports of the engines, and decisions about replicas, as Prometheus metrics read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from weakref import WeakKeyDictionary

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvarn.catalog.models import ServedModel
from kvarn.catalog.work_window import WorkRates, WorkWindow
from kvarn.clock import SYSTEM_CLOCK
from kvarn.observe.admission import TIERS, priority_tier
from kvarn.observe.samples import REASONS
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.wire.engine_stats import STEP_TOKENS
from kvarn.wire.messages import EngineStats

_COUNTERS = {
    "kvarn_steps_total": ("step", "Forward passes."),
    "kvarn_prompt_tokens_total": ("prompt_tokens_total", "Prompt tokens computed."),
    "kvarn_cached_tokens_total": ("cached_tokens_total", "Prompt tokens taken from the prefix cache."),
    "kvarn_output_tokens_total": ("output_tokens_total", "Tokens generated."),
    "kvarn_preemptions_total": ("preemptions_total", "Running requests put back into the queue for want of KV blocks."),
    "kvarn_evictions_total": ("evictions_total", "Blocks evicted from the prefix cache."),
    "kvarn_external_prefix_cache_queries_total": (
        "lookups.queries_total",
        "Prompt tokens looked up in the tiers beyond the KV cache: those that the prefix cache did not hold.",
    ),
    "kvarn_external_prefix_cache_hits_total": (
        "lookups.hits_total",
        "Prompt tokens loaded from the tiers beyond the KV cache.",
    ),
    "kvarn_kv_offload_given_up_total": (
        "lookups.given_up_total",
        "Fetches of KV blocks from disk that took longer than computing the blocks.",
    ),
    "kvarn_session_returns_total": ("sessions.returns_total", "Turns that went on with a session's conversation."),
    "kvarn_session_resident_returns_total": (
        "sessions.resident_returns_total",
        "Turns that found the whole of their conversation's last one in the prefix cache.",
    ),
    "kvarn_prefills_apart_total": (
        "lookups.remote_prefills_total",
        "Prompts that the prefill engine was asked to compute.",
    ),
    "kvarn_spec_decode_num_drafts_total": ("speculation.drafts_total", "Rows of steps that verified proposals."),
    "kvarn_spec_decode_num_draft_tokens_total": ("speculation.draft_tokens_total", "Tokens proposed."),
    "kvarn_spec_decode_num_accepted_tokens_total": (
        "speculation.accepted_tokens_total",
        "Proposed tokens that were drawn.",
    ),
    "kvarn_aborts_total": ("aborts_total", "Requests aborted because their client left or had enough."),
    "kvarn_finished_total": ("finished_total", "Requests finished."),
    "kvarn_adapter_loads_total": ("adapters.loads_total", "LoRA adapters brought from host memory into KV blocks."),
    "kvarn_adapter_evictions_total": (
        "adapters.evictions_total",
        "LoRA adapters evicted from KV blocks.",
    ),
    "kvarn_read_bytes_total": (
        "work.read_bytes_total",
        "Bytes of weights and cached tokens read by the steps.",
    ),
    "kvarn_operations_total": ("work.operations_total", "Operations that the steps had to do; a multiply-add is two."),
}

_GAUGES = {
    "kvarn_running_requests": ("running", "Sequences running."),
    "kvarn_batch_size": ("batch_seqs", "Sequences in the latest step."),
    "kvarn_batch_tokens": ("batch_tokens", "Tokens computed in the latest step, prefill and decode."),
    "kvarn_step_seconds": ("step_s", "Duration of the latest step."),
    "kvarn_sessions": ("sessions.known", "Sessions that the engine keeps in mind."),
    "kvarn_adapter_kv_blocks": ("adapters.blocks", "KV blocks that hold LoRA adapters, used or not."),
    "kvarn_expert_imbalance_ratio": (
        "experts.imbalance",
        "Tokens given to the busiest expert of a layer since the start, over the mean of its experts.",
    ),
    "kvarn_kv_waste_ratio": ("kv_waste_ratio", "Allocated KV slots that hold no token, over all allocated slots."),
}

_TIERS = {
    "kvarn_kv_offload_capacity_bytes": ("capacity_bytes", "Bytes of KV blocks that a tier may hold."),
    "kvarn_kv_offload_used_bytes": ("used_bytes", "Bytes that a tier's KV blocks take."),
    "kvarn_kv_offload_blocks": ("blocks", "KV blocks that a tier holds."),
    "kvarn_kv_offload_stored_bytes_total": ("stored_bytes_total", "Bytes of KV blocks stored in a tier."),
    "kvarn_kv_offload_loaded_bytes_total": ("loaded_bytes_total", "Bytes of KV blocks loaded from a tier."),
    "kvarn_kv_offload_load_seconds_total": ("load_s_total", "Seconds spent reading KV blocks from a tier."),
    "kvarn_kv_offload_evictions_total": ("evictions_total", "KV blocks of a tier that made room for others."),
}
"""Metrics of KV blocks beyond the cache, by tier; none where no tiers are configured."""


_AWAY = frozenset({ReplicaState.PENDING, ReplicaState.STARTING, ReplicaState.DOWN})

Values = float | Mapping[str, float]
"""Metrics of one replica; by the value of one more label, where the metric has it."""


class EngineCollector(Collector):
    """Turns the latest `EngineStats` of every replica into metrics at each scrape. Counters count since the engine's
    start. As long as each model has had one replica, `model` alone labels them. `by_organization`: tokens are told by
    organisation, too."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, ReplicaClient]],
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
        *,
        by_organization: bool = False,
    ) -> None:
        self._models = models
        self._by_organization = by_organization
        self._clock = clock
        self._windows: WeakKeyDictionary[ReplicaClient, WorkWindow] = WeakKeyDictionary()
        self._several = False
        """Whether any model has had several replicas: labels are never dropped again."""

    @property
    def _label_names(self) -> tuple[str, ...]:
        self._several = self._several or any(len(replicas) > 1 for replicas in self._models.values())
        return ("model", "replica") if self._several else ("model",)

    @property
    def _replicas(self) -> Iterator[tuple[tuple[str, ...], ReplicaClient]]:
        """Values of those labels, and the replica."""
        for model, replicas in self._models.items():
            for name, client in replicas.items():
                yield ((model, name) if self._several else (model,)), client

    def collect(self) -> Iterator[Metric]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield self._metric(gauge, "kvarn_replica_up", "1 when the model's replica takes requests.", _is_up)
        help_text = "1 while a replica that served is away: its process is lost, or is starting again."
        yield self._metric(gauge, "kvarn_replica_silent", help_text, _is_silent)
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
        help_text = "Sequences waiting in the engine, by what they wait for."
        yield self._metric(gauge, "kvarn_queue_waiting", help_text, _queue_waiting, "reason")
        yield from self._rates()
        yield self._step_tokens()
        yield self._cache_config()
        for name, (field, help_text) in _COUNTERS.items():
            yield self._metric(counter, name, help_text, _reader(field))
        help_text = "LoRA adapters that requests may name."
        yield self._metric(gauge, "kvarn_adapters_loaded", help_text, lambda client: len(client.adapters))
        yield self._lora_requests()
        for name, (field, help_text) in _TIERS.items():
            family = counter if name.endswith("_total") else gauge
            yield self._metric(family, name, help_text, _tier_reader(field), "tier")
        help_text = "KV blocks that a tier did not store or use, by reason."
        yield self._metric(counter, "kvarn_kv_offload_dropped_total", help_text, _dropped_blocks, "reason")
        help_text = "Proposed tokens that were drawn, by their position in the row."
        name = "kvarn_spec_decode_num_accepted_tokens_per_pos_total"
        yield self._metric(counter, name, help_text, _accepted_by_position, "position")
        help_text = "Tokens given to the experts of a rank, summed over layers."
        yield self._metric(counter, "kvarn_expert_tokens_total", help_text, _reader("experts.tokens_total"), "rank")
        if self._by_organization:
            name, help_text = "kvarn_organization_tokens_total", "Tokens served to an organisation."
            yield self._metric(counter, name, help_text, _reader("tenant_tokens_total"), "organization")
        help_text = "Requests the engine refused, by reason."
        yield self._metric(counter, "kvarn_refused_total", help_text, _reader("refused_total"), "reason")

    def _lora_requests(self) -> Metric:
        """Adapters as vLLM shows them: names in labels, separated by commas. The value is 1: one line a replica."""
        labels = (*self._label_names, "max_lora", "running_lora_adapters", "waiting_lora_adapters")
        metric = GaugeMetricFamily(
            "kvarn_lora_requests_info", "LoRA adapters with running and with waiting requests.", labels=labels
        )
        for own, client in self._replicas:
            running, waiting = (
                ",".join(names) for names in (client.stats.adapters.running, client.stats.adapters.waiting)
            )
            metric.add_metric([*own, str(len(client.adapters)), running, waiting], 1.0)
        return metric

    def _rates(self) -> Iterator[Metric]:
        """Rates over the last seconds; a sample is missing where a rate is not known."""
        names = self._label_names
        intensity = GaugeMetricFamily(
            "kvarn_arithmetic_intensity", "Operations for each byte that the latest steps read.", labels=names
        )
        bandwidth = GaugeMetricFamily(
            "kvarn_bandwidth_utilisation",
            "Bytes read in a second, over those that the model's products read on this device.",
            labels=names,
        )
        finished = GaugeMetricFamily(
            "kvarn_finished_per_second", "Requests that the engine finished in a second.", labels=names
        )
        for own, client in self._replicas:
            rates = self._rates_of(client)
            speed = client.card.read_bytes_per_s if client.card is not None else 0.0
            for metric, value, is_known in (
                (intensity, rates.intensity, True),
                (bandwidth, rates.read_bytes_per_s / speed if speed else 0.0, speed > 0),
                (finished, rates.finished_per_s, True),
            ):
                if is_known and value == value:
                    metric.add_metric(own, value)
        yield from (intensity, bandwidth, finished)

    def _rates_of(self, client: ReplicaClient) -> WorkRates:
        window = self._windows.get(client)
        if window is None:
            window = self._windows[client] = WorkWindow()
        return window.rates(client.stats, self._clock())

    def _step_tokens(self) -> Metric:
        metric = HistogramMetricFamily("kvarn_step_tokens", "Tokens computed in a step.", labels=self._label_names)
        for own, client in self._replicas:
            buckets, below = list[tuple[str, float]](), 0
            for bound, count in zip(
                (*map(float, STEP_TOKENS), float("inf")), client.stats.steps_by_tokens, strict=False
            ):
                below += count
                buckets.append(("+Inf" if bound == float("inf") else str(bound), below))
            if buckets:
                metric.add_metric(own, buckets, client.stats.step_tokens_total)
        return metric

    def _cache_config(self) -> Metric:
        """Sizes of the KV cache in labels, as vLLM shows them. The value is 1."""
        labels = (*self._label_names, "block_size", "num_blocks", "dtype")
        metric = GaugeMetricFamily("kvarn_kv_cache_info", "Sizes of the KV cache.", labels=labels)
        for own, client in self._replicas:
            if (card := client.card) is not None and card.kv_blocks:
                metric.add_metric([*own, str(card.block_size), str(card.kv_blocks), card.kv_dtype], 1.0)
        return metric

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


def _is_silent(client: ReplicaClient) -> float:
    return client.starts > 0 and client.state in _AWAY


def _restarts(client: ReplicaClient) -> float:
    return max(0, client.starts - 1)


def _reader(field: str) -> Callable[[ReplicaClient], Values]:
    read: Callable[[EngineStats], Values] = attrgetter(field)
    return lambda client: read(client.stats)


def _tier_reader(field: str) -> Callable[[ReplicaClient], Values]:
    return lambda client: {name: getattr(tier, field) for name, tier in client.stats.kv_tiers.items()}


def _dropped_blocks(client: ReplicaClient) -> Values:
    tiers = client.stats.kv_tiers.items()
    return {f"{name}_{reason}": count for name, tier in tiers for reason, count in tier.dropped_total.items()}


def _kv_utilisation(client: ReplicaClient) -> float:
    total = client.stats.kv_blocks_total
    return (total - client.stats.kv_blocks_free) / total if total else 0.0


def _kv_blocks(client: ReplicaClient) -> Values:
    total, free, cached = client.stats.kv_blocks_total, client.stats.kv_blocks_free, client.stats.kv_blocks_cached
    return {"used": total - free, "cached": cached, "free": free - cached}


def _prefix_hits(client: ReplicaClient) -> float:
    prompt = client.stats.cached_tokens_total + client.stats.prompt_tokens_total
    return client.stats.cached_tokens_total / prompt if prompt else float("nan")


def _accepted_by_position(client: ReplicaClient) -> Values:
    counts = client.stats.speculation.accepted_tokens_per_pos_total
    return {str(position): float(count) for position, count in enumerate(counts)}


def _queue_depth(client: ReplicaClient) -> Values:
    depth = dict.fromkeys(TIERS, 0)
    for priority, count in client.stats.waiting_by_priority.items():
        depth[priority_tier(priority)] += count
    return depth


def _queue_waiting(client: ReplicaClient) -> Values:
    return dict.fromkeys(REASONS, 0.0) | client.stats.waiting_by_reason


_LABELS = ("model", "replica")


class RoutingCollector(Collector):
    """Reads the routers at each scrape; models with one replica have none."""

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
