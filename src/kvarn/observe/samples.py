"""Samples of the server's metrics: what happened to each model in an interval, and the series that charts show of it.

A sample of a model is one array: counts of the interval, gauges at its end, and the buckets of two histograms. Arrays
are merged by adding, over time and over models, so any resolution and any range can be made of them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple, TypeAlias

from kvarn.observe.merge import MetricFamily, MetricSample
from kvarn.observe.metrics import TPOT_BUCKETS, TTFT_BUCKETS, UNKNOWN
from kvarn.observe.quantiles import quantile
from kvarn.observe.timeline import WAITS_OR_PREEMPTED, waiting_reason
from kvarn.observe.traces.conventions import is_operation

REASONS = tuple(map(waiting_reason, WAITS_OR_PREEMPTED))
COUNTS = (
    *("requests", "errors", "refused", "met", "missed", "prompt_tokens", "cached_tokens", "output_tokens"),
    *("preemptions", "restarts"),
)
SUMS = ("running", "waiting", "kv_used", "kv_blocks", "replicas_ready", "replicas", *(f"waiting_{r}" for r in REASONS))
"""Gauges that are summed over replicas and models."""
_PLACES = {name: place for place, name in enumerate((*COUNTS, *SUMS, "step_s"))}
_FIRST_GAUGE, _STEP_S = len(COUNTS), len(COUNTS) + len(SUMS)
_TTFT = slice(_STEP_S + 1, _STEP_S + 2 + len(TTFT_BUCKETS))
_TPOT = slice(_TTFT.stop, _TTFT.stop + 1 + len(TPOT_BUCKETS))
_LENGTH = _TPOT.stop
_BOUNDS = {
    "kvarn_ttft_seconds": (_TTFT.start, (*TTFT_BUCKETS, math.inf)),
    "kvarn_tpot_seconds": (_TPOT.start, (*TPOT_BUCKETS, math.inf)),
}

Values: TypeAlias = "array[float]"


class _Added(NamedTuple):
    """Place to which a metric's samples are added. `label`: a label, and those of its values that count."""

    name: str
    label: str = ""
    values: tuple[str, ...] = ()


class Source(NamedTuple):
    """An engine of a model, by its replica's name (empty: the only one's); None: the gateway, which counts from 0."""

    model: str
    engine: str | None


_OF_GATEWAY: Mapping[str, Sequence[_Added]] = {
    "kvarn_requests": [
        _Added("requests"),
        _Added("errors", "status", tuple(str(status) for status in range(500, 600))),
        _Added("refused", "status", tuple(str(status) for status in range(400, 499))),  # 499: the client left
    ],
    "kvarn_slo_requests": [_Added("met", "outcome", ("met",)), _Added("missed", "outcome", ("missed",))],
    "kvarn_admission_queue_length": [_Added("waiting")],
    **dict.fromkeys(_BOUNDS, ()),
}
_OF_ENGINES: Mapping[str, Sequence[_Added]] = {
    "kvarn_prompt_tokens": [_Added("prompt_tokens")],
    "kvarn_cached_tokens": [_Added("cached_tokens")],
    "kvarn_output_tokens": [_Added("output_tokens")],
    "kvarn_preemptions": [_Added("preemptions")],
    "kvarn_replica_restarts": [_Added("restarts")],
    "kvarn_running_requests": [_Added("running")],
    "kvarn_queue_depth": [_Added("waiting")],
    "kvarn_kv_blocks": [_Added("kv_used", "state", ("used",)), _Added("kv_blocks")],
    "kvarn_replica_up": [_Added("replicas_ready")],
    "kvarn_queue_waiting": [_Added(f"waiting_{reason}", "reason", (reason,)) for reason in REASONS],
    "kvarn_step_seconds": [],
}
_TOLD = tuple(_PLACES[name] for name in ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions"))
"""Totals that engines themselves tell."""


def read_totals(families: Iterable[MetricFamily]) -> dict[Source, Values]:
    """Totals of each source since its start, and its gauges."""
    totals: dict[Source, Values] = {}
    for family in families:
        is_engines, bounds = family.name in _OF_ENGINES, _BOUNDS.get(family.name)
        added = (_OF_ENGINES if is_engines else _OF_GATEWAY).get(family.name)
        for sample in () if added is None else family.samples:
            model = sample.labels.get("model", UNKNOWN)
            asks = model != UNKNOWN or is_operation(sample.labels.get("endpoint", ""))  # of no model, if refused early
            if not asks or sample.name.endswith("_created"):
                continue
            source = Source(model, sample.labels.get("replica", "") if is_engines else None)
            values = totals.get(source)
            if values is None:
                values = totals[source] = zeros()
            if family.name == "kvarn_step_seconds":
                values[_STEP_S] = sample.value
            elif bounds is not None:
                _add_bucket(values, sample, *bounds)
            for each in added or ():
                if not each.label or sample.labels.get(each.label) in each.values:
                    values[_PLACES[each.name]] += sample.value
            if family.name == "kvarn_replica_up":
                values[_PLACES["replicas"]] += 1
    return totals


def _add_bucket(values: Values, sample: MetricSample, first: int, bounds: Sequence[float]) -> None:
    if "le" in sample.labels:
        values[first + bounds.index(float(sample.labels["le"]))] += sample.value


def zeros() -> Values:
    return array("d", bytes(8 * _LENGTH))


class CountReader:
    """Reads the metrics again and again: what has happened to each model since the reading before.

    Totals are compared source by source: a sum of engines would fall when one of them starts again. An engine may have
    counted for days when it is first heard, since engines outlive gateways: that belongs to no interval.
    """

    def __init__(self) -> None:
        self._totals: dict[Source, Values] = {}

    def read(self, families: Iterable[MetricFamily]) -> dict[str, Values]:
        """Counts by model since the last reading, and gauges. Of the first one, the gateway's totals."""
        before = self._totals
        after = self._totals = {
            source: _last_told(source, before.get(source), totals) for source, totals in read_totals(families).items()
        }
        models: dict[str, list[Values]] = {}
        for source, totals in after.items():
            models.setdefault(source.model, []).append(_difference(source, before.get(source), totals))
        return {model: total_of(sources) for model, sources in models.items()}


def _last_told(source: Source, before: Values | None, totals: Values) -> Values:
    """An engine that is away, or has not been heard yet, shows zeros: what it told last stands; NaN: nothing."""
    is_told = source.engine is None or totals[_PLACES["replicas_ready"]] or any(totals[place] for place in _TOLD)
    if not is_told:
        for place in _TOLD:
            totals[place] = math.nan if before is None else before[place]
    return totals


def _difference(source: Source, before: Values | None, after: Values) -> Values:
    """Counts of a source between two readings. A total that has become less began anew at 0, as after a restart."""
    made, unknown = array("d", after), 0.0 if source.engine is None else math.nan
    for place in (*range(_FIRST_GAUGE), *range(_TTFT.start, _LENGTH)):
        total, known = after[place], unknown if before is None else before[place]
        if math.isnan(total) or math.isnan(known):
            made[place] = 0.0
        elif total >= known:
            made[place] -= known
    return made


def total_of(models: Iterable[Values]) -> Values:
    """All models in one interval. The step time is the longest."""
    made = zeros()
    for values in models:
        longest = max(made[_STEP_S], values[_STEP_S])
        made = array("d", map(add, made, values))
        made[_STEP_S] = longest
    return made


def joined(intervals: Sequence[Values]) -> Values:
    """Several intervals as one: the gauges are their means."""
    made = total_of(intervals)
    for place in range(_FIRST_GAUGE, _STEP_S):
        made[place] /= max(1, len(intervals))
    return made


@dataclass(frozen=True, slots=True)
class IntervalCounts:
    """Counts of some seconds and gauges, of a model or of all."""

    values: Values
    seconds: float

    def get(self, name: str) -> float:
        return self.values[_PLACES[name]]

    def per_s(self, name: str) -> float:
        return self.get(name) / self.seconds

    @property
    def ttft_buckets(self) -> Values:
        """Requests by their TTFT, cumulative."""
        return self.values[_TTFT]

    @property
    def tpot_buckets(self) -> Values:
        return self.values[_TPOT]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _goodput(interval: IntervalCounts) -> float:
    met = interval.get("met")
    return _ratio(met, met + interval.get("missed"))


def _hit_ratio(interval: IntervalCounts) -> float:
    cached = interval.get("cached_tokens")
    return _ratio(cached, cached + interval.get("prompt_tokens"))


SERIES: Mapping[str, Callable[[IntervalCounts], float]] = {
    "requests_per_s": lambda each: each.per_s("requests"),
    "errors_per_s": lambda each: each.per_s("errors"),
    "refused_per_s": lambda each: each.per_s("refused"),
    "error_ratio": lambda each: _ratio(each.get("errors"), each.get("requests")),
    "refused_ratio": lambda each: _ratio(each.get("refused"), each.get("requests")),
    "ttft_p50_s": lambda each: quantile(0.5, TTFT_BUCKETS, each.ttft_buckets),
    "ttft_p95_s": lambda each: quantile(0.95, TTFT_BUCKETS, each.ttft_buckets),
    "tpot_p95_s": lambda each: quantile(0.95, TPOT_BUCKETS, each.tpot_buckets),
    "goodput_ratio": _goodput,
    "input_tokens_per_s": lambda each: each.per_s("prompt_tokens") + each.per_s("cached_tokens"),
    "cached_tokens_per_s": lambda each: each.per_s("cached_tokens"),
    "output_tokens_per_s": lambda each: each.per_s("output_tokens"),
    "hit_ratio": _hit_ratio,
    "preemptions_per_s": lambda each: each.per_s("preemptions"),
    "running": lambda each: each.get("running"),
    "waiting": lambda each: each.get("waiting"),
    **{f"waiting_{reason}": lambda each, name=f"waiting_{reason}": each.get(name) for reason in REASONS},  # type: ignore[misc]
    "kv_utilisation": lambda each: _ratio(each.get("kv_used"), each.get("kv_blocks")),
    "replicas_ready": lambda each: each.get("replicas_ready"),
    "replicas": lambda each: each.get("replicas"),
    "step_s": lambda each: each.get("step_s"),
}
"""Series of charts: names, and how each follows from an interval. NaN: nothing is known."""
