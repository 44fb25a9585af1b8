"""What the engines report, as Prometheus metrics, read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

TIERS = ("interactive", "standard", "batch")
"""Names of the priority tiers, best first; see `priority_tier`."""


class EngineGauges(Protocol):
    """The part of an engine's statistics that is exported; see `kvarn.wire.messages.EngineStats` for each."""

    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def running(self) -> int: ...  # noqa: D102
    @property
    def waiting_by_priority(self) -> dict[int, int]: ...  # noqa: D102
    @property
    def kv_blocks_total(self) -> int: ...  # noqa: D102
    @property
    def kv_blocks_free(self) -> int: ...  # noqa: D102
    @property
    def kv_blocks_cached(self) -> int: ...  # noqa: D102
    @property
    def kv_waste_ratio(self) -> float: ...  # noqa: D102
    @property
    def batch_tokens(self) -> int: ...  # noqa: D102
    @property
    def batch_seqs(self) -> int: ...  # noqa: D102
    @property
    def step_s(self) -> float: ...  # noqa: D102
    @property
    def prompt_tokens_total(self) -> int: ...  # noqa: D102
    @property
    def cached_tokens_total(self) -> int: ...  # noqa: D102
    @property
    def output_tokens_total(self) -> int: ...  # noqa: D102
    @property
    def preemptions_total(self) -> int: ...  # noqa: D102
    @property
    def aborts_total(self) -> int: ...  # noqa: D102
    @property
    def finished_total(self) -> int: ...  # noqa: D102
    @property
    def refused_total(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def evictions_total(self) -> int: ...  # noqa: D102
    @property
    def read_bytes_total(self) -> int: ...  # noqa: D102
    @property
    def operations_total(self) -> int: ...  # noqa: D102


class EngineSource(Protocol):
    """One served model, as the collector sees it."""

    @property
    def name(self) -> str:
        """The model's name: the `model` label."""
        ...

    @property
    def up(self) -> bool:
        """Whether its replica takes requests."""
        ...

    @property
    def incarnation(self) -> object:
        """An object that changes with each start of the engine process; None before the first."""
        ...

    @property
    def stats(self) -> EngineGauges:
        """The latest statistics; totals count since the engine's start."""
        ...


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


def priority_tier(priority: int) -> str:
    """The tier a priority belongs to: clients choose priorities freely, labels must be few."""
    return "interactive" if priority <= 0 else "standard" if priority < 10 else "batch"


class EngineCollector(Collector):
    """Turns the latest `EngineStats` of every model into metrics at each scrape."""

    def __init__(self, engines: Iterable[EngineSource]) -> None:
        self._engines = list(engines)
        self._totals = {engine.name: MonotonicTotals() for engine in self._engines}

    def observe(self) -> None:
        """Read the totals now: what an engine counts after the latest reading is lost if it dies."""
        for engine in self._engines:
            self._read_totals(engine, engine.stats)

    def collect(self) -> Iterator[Metric]:
        """Read every engine once and yield its metrics."""
        readings = [(engine, engine.stats) for engine in self._engines]
        totals = {engine.name: self._read_totals(engine, stats) for engine, stats in readings}
        up = GaugeMetricFamily("kvarn_replica_up", "1 when the model's replica takes requests.", labels=["model"])
        restarts = CounterMetricFamily("kvarn_replica_restarts", "Restarts of the engine process.", labels=["model"])
        for engine in self._engines:
            up.add_metric([engine.name], float(engine.up))
            restarts.add_metric([engine.name], self._totals[engine.name].restarts)
        yield up
        yield restarts
        yield from _gauges(readings)
        yield from _memory(readings)
        yield _queue_depth(readings)
        yield from _counters(totals)

    def _read_totals(self, engine: EngineSource, stats: EngineGauges) -> dict[str, int]:
        now = {family: int(getattr(stats, field)) for family, (field, _) in _COUNTERS.items()}
        now |= {f"kvarn_refused/{reason}": count for reason, count in stats.refused_total.items()}
        return self._totals[engine.name].read(engine.incarnation, now)


def _gauges(readings: list[tuple[EngineSource, EngineGauges]]) -> Iterator[Metric]:
    for name, (field, help_text) in _GAUGES.items():
        family = GaugeMetricFamily(name, help_text, labels=["model"])
        for engine, stats in readings:
            family.add_metric([engine.name], float(getattr(stats, field)))
        yield family


def _memory(readings: list[tuple[EngineSource, EngineGauges]]) -> Iterator[Metric]:
    utilisation = GaugeMetricFamily(
        "kvarn_kv_utilisation", "Share of KV blocks held by running requests.", labels=["model"]
    )
    blocks = GaugeMetricFamily(
        "kvarn_kv_blocks",
        "KV blocks: held by requests, held only by the prefix cache, free.",
        labels=["model", "state"],
    )
    hits = GaugeMetricFamily(
        "kvarn_prefix_hit_ratio", "Share of prompt tokens found in the prefix cache since the start.", labels=["model"]
    )
    for engine, stats in readings:
        total = stats.kv_blocks_total
        used = total - stats.kv_blocks_free
        utilisation.add_metric([engine.name], used / total if total else 0.0)
        blocks.add_metric([engine.name, "used"], used)
        blocks.add_metric([engine.name, "cached"], stats.kv_blocks_cached)
        blocks.add_metric([engine.name, "free"], stats.kv_blocks_free - stats.kv_blocks_cached)
        prompt = stats.cached_tokens_total + stats.prompt_tokens_total
        hits.add_metric([engine.name], stats.cached_tokens_total / prompt if prompt else float("nan"))
    yield from (utilisation, blocks, hits)


def _queue_depth(readings: list[tuple[EngineSource, EngineGauges]]) -> Metric:
    family = GaugeMetricFamily("kvarn_queue_depth", "Requests waiting, by priority tier.", labels=["model", "priority"])
    for engine, stats in readings:
        depth = dict.fromkeys(TIERS, 0)
        for priority, count in stats.waiting_by_priority.items():
            depth[priority_tier(priority)] += count
        for tier, count in depth.items():
            family.add_metric([engine.name, tier], count)
    return family


def _counters(totals: dict[str, dict[str, int]]) -> Iterator[Metric]:
    for name, (_, help_text) in _COUNTERS.items():
        family = CounterMetricFamily(name, help_text, labels=["model"])
        for model, values in totals.items():
            family.add_metric([model], values[name])
        yield family
    refused = CounterMetricFamily(
        "kvarn_refused", "Requests the engine refused, by reason.", labels=["model", "reason"]
    )
    for model, values in totals.items():
        for key, count in values.items():
            if key.startswith("kvarn_refused/"):
                refused.add_metric([model, key.removeprefix("kvarn_refused/")], count)
    yield refused
