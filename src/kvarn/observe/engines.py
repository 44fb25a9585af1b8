"""What the engines report, as Prometheus metrics, read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

TIERS = ("interactive", "standard", "batch")
"""Names of the priority tiers, best first; see `priority_tier`."""


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
    def stats(self) -> Any:
        """The latest `kvarn.wire.messages.EngineStats`; totals count since the engine's start."""
        ...


_REFUSED = "kvarn_refused"
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


def by_tier(by_priority: Mapping[int, int]) -> dict[str, int]:
    """Requests of each tier, from those of each priority."""
    counts = dict.fromkeys(TIERS, 0)
    for priority, count in by_priority.items():
        counts[priority_tier(priority)] += count
    return counts


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
        families = _families()
        for engine in self._engines:
            stats = engine.stats
            totals = self._read_totals(engine, stats)
            for name, labels, value in _samples(engine, stats, totals, self._totals[engine.name].restarts):
                families[name].add_metric([engine.name, *labels], value)
        yield from families.values()

    def _read_totals(self, engine: EngineSource, stats: Any) -> dict[str, int]:
        now = {family: int(getattr(stats, field)) for family, (field, _) in _COUNTERS.items()}
        now |= {f"{_REFUSED}/{reason}": count for reason, count in stats.refused_total.items()}
        return self._totals[engine.name].read(engine.incarnation, now)


def _families() -> dict[str, GaugeMetricFamily | CounterMetricFamily]:
    """The metrics, without samples yet."""
    gauges = {
        "kvarn_replica_up": ("1 when the model's replica takes requests.", ()),
        **{name: (text, ()) for name, (_, text) in _GAUGES.items()},
        "kvarn_kv_utilisation": ("Share of KV blocks held by running requests.", ()),
        "kvarn_kv_blocks": ("KV blocks: held by requests, held only by the prefix cache, free.", ("state",)),
        "kvarn_prefix_hit_ratio": ("Share of prompt tokens found in the prefix cache since the start.", ()),
        "kvarn_queue_depth": ("Requests waiting, by priority tier.", ("priority",)),
    }
    counters = {
        "kvarn_replica_restarts": ("Restarts of the engine process.", ()),
        **{name: (text, ()) for name, (_, text) in _COUNTERS.items()},
        _REFUSED: ("Requests the engine refused, by reason.", ("reason",)),
    }
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for kind, described in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, (text, labels) in described.items():
            families[name] = kind(name, text, labels=["model", *labels])
    return families


def _samples(
    engine: EngineSource, stats: Any, totals: Mapping[str, int], restarts: int
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Metric, labels beside the model, and value."""
    yield "kvarn_replica_up", (), float(engine.up)
    yield "kvarn_replica_restarts", (), restarts
    for name, (field, _) in _GAUGES.items():
        yield name, (), float(getattr(stats, field))
    used = stats.kv_blocks_total - stats.kv_blocks_free
    yield "kvarn_kv_utilisation", (), used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
    yield "kvarn_kv_blocks", ("used",), used
    yield "kvarn_kv_blocks", ("cached",), stats.kv_blocks_cached
    yield "kvarn_kv_blocks", ("free",), stats.kv_blocks_free - stats.kv_blocks_cached
    prompt = stats.cached_tokens_total + stats.prompt_tokens_total
    yield "kvarn_prefix_hit_ratio", (), stats.cached_tokens_total / prompt if prompt else float("nan")
    for tier, count in by_tier(stats.waiting_by_priority).items():
        yield "kvarn_queue_depth", (tier,), count
    for name, total in totals.items():
        family, _, reason = name.partition("/")
        yield family, (reason,) if reason else (), total
