"""The server's last day in memory: samples of its metrics for charts that need no Prometheus.

A sample is taken every 10 s from what the metrics count anyway; nothing is done for a request. The last hour is kept by
10 s, the 24 hours before by the minute: 1,800 samples of about 0.6 kB for each model. Seconds in which no sample was
taken (the machine slept, the process was stopped) are gaps in the charts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.observe.merge import MetricFamily
from kvarn.observe.samples import SERIES, CountReader, IntervalCounts, Values, joined, total_of

EVERY_S = 10.0
FINE_S = 3600.0
COARSE_EVERY_S = 60.0
COARSE_S = 24 * 3600.0
RECENT_S = 300.0
MAX_POINTS = 360
_LONGEST_S = 3 * EVERY_S
"""Seconds between two samples from which on they are not compared: a gap."""
_MAX_MODELS = 200
_RESTARTS = "kvarn_gateway_process_restarts"
_MAX_MARKS = 200


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment that a chart marks: `start` of the server, `restart` of a replica, `gateway_restart`."""

    at: float
    """UNIX seconds."""
    kind: str
    model: str = ""
    count: int = 1


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for series of the last seconds, of a model or (empty) of all together."""

    seconds: float
    model: str = ""
    names: list[str] = []
    """Empty: all of `SERIES`."""
    points: int = MAX_POINTS


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Series with a common axis of time."""

    since: float
    """UNIX seconds of the beginning of the history: nothing older is known."""
    step_s: float
    at: list[float]
    """UNIX seconds of the ends of intervals, `step_s` apart."""
    series: dict[str, list[float | None]]
    """None: nothing is known of that interval."""
    whole: dict[str, float | None]
    """All of `SERIES` over the whole range, and counts: `requests`, `errors`, `judged_requests` (by their latency),
    `input_tokens`, `output_tokens`, `preemptions`. Empty: nothing is known."""
    recent: dict[str, dict[str, float | None]]
    """The same over the last five minutes by model; all together under the empty name."""
    marks: list[Mark]


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    seconds: float
    models: Mapping[str, Values]


@dataclass(slots=True)
class _Pending:
    """Samples of the minute that is not over."""

    minute: int = -1
    samples: list[_Sample] = field(default_factory=list)


class ServerHistory:
    """Samples of one server. Belongs to one event loop.

    Args:
        time: UNIX seconds.
    """

    def __init__(self, time: Callable[[], float] = SYSTEM_CLOCK.time) -> None:
        self._time = time
        self.since = time()
        self._fine: deque[_Sample] = deque(maxlen=round(FINE_S / EVERY_S))
        self._coarse: deque[_Sample] = deque(maxlen=round(COARSE_S / COARSE_EVERY_S))
        self._pending = _Pending()
        self._counts = CountReader()
        self._sampled_at, self._restarts = -math.inf, 0.0
        self.marks: deque[Mark] = deque([Mark(at=self.since, kind="start")], maxlen=_MAX_MARKS)

    def sample(self, families: Iterable[MetricFamily]) -> None:
        """Take a sample of what the metrics say now."""
        families = list(families)
        now, counts = self._time(), self._counts.read(families)
        elapsed, self._sampled_at = now - self._sampled_at, now
        restarts = sum(each.value for family in families if family.name == _RESTARTS for each in family.samples[:1])
        restarted, self._restarts = round(restarts - self._restarts), restarts
        if not 0 < elapsed <= _LONGEST_S:
            return
        if restarted > 0:
            self.marks.append(Mark(at=now, kind="gateway_restart", count=restarted))
        models = dict(islice(counts.items(), _MAX_MODELS))
        for name, values in models.items():
            if count := round(IntervalCounts(values, elapsed).get("restarts")):
                self.marks.append(Mark(at=now, kind="restart", model=name, count=count))
        sample = _Sample(now, elapsed, {"": total_of(counts.values()), **models})
        self._fine.append(sample)
        minute = int(now // COARSE_EVERY_S)
        if self._pending.samples and minute != self._pending.minute:
            self._coarse.append(_join(self._pending.samples))
            self._pending.samples = []
        self._pending.minute = minute
        self._pending.samples.append(sample)

    def read(self, query: HistoryQuery) -> HistoryPage:
        """The series that are asked for. Names that are not known are left out."""
        now = self._time()
        if now - self._sampled_at <= _LONGEST_S:
            now = self._sampled_at
        seconds = min(max(query.seconds, EVERY_S), COARSE_S)
        samples = [each for each in self._samples(seconds) if each.at > now - seconds]
        names = [name for name in query.names or SERIES if name in SERIES]
        step = EVERY_S if seconds <= FINE_S else COARSE_EVERY_S
        step *= math.ceil(seconds / step / min(max(1, query.points), MAX_POINTS))
        at, slots = _slots(samples, now, seconds, step, query.model)
        series = {name: [None if each is None else _known(SERIES[name](each)) for each in slots] for name in names}
        return HistoryPage(
            since=self.since,
            step_s=step,
            at=at,
            series=series,
            whole=_summary(_of_model(samples, query.model)),
            recent=_recent([each for each in self._fine if each.at > now - RECENT_S]),
            marks=[mark for mark in self.marks if mark.at > now - seconds and query.model in ("", mark.model)],
        )

    def _samples(self, seconds: float) -> Sequence[_Sample]:
        return self._fine if seconds <= FINE_S else [*self._coarse, *self._pending.samples]


class HistorySource(Protocol):
    """The history of the whole server, whichever of its processes asks."""

    async def read(self, query: HistoryQuery) -> HistoryPage: ...

    async def sample(self) -> None:
        """Take a sample, where the history is kept."""


class CountedHistory:
    """A history in this process. `families`: reads the metrics of all processes."""

    def __init__(self, families: Callable[[], Awaitable[list[MetricFamily]]]) -> None:
        self.history = ServerHistory()
        self._families = families

    async def read(self, query: HistoryQuery) -> HistoryPage:
        return self.history.read(query)

    async def sample(self) -> None:
        self.history.sample(await self._families())


def _slots(
    samples: Sequence[_Sample], now: float, seconds: float, step: float, model: str
) -> tuple[list[float], list[IntervalCounts | None]]:
    """Ends of the intervals of a range, aligned to their width, and what happened in each."""
    last = math.ceil(now / step)
    first = last - math.ceil(seconds / step) + 1
    found: dict[int, list[_Sample]] = {}
    for each in samples:
        found.setdefault(math.ceil(each.at / step), []).append(each)
    for each in samples:  # samples a little more than a step apart leave out an interval now and then
        before = (each.at - each.seconds) / step
        for number in range(math.floor(before + 0.5) + 1, math.ceil(each.at / step)):
            found.setdefault(number, [each])
    slots = [_of_model(found[number], model) if number in found else None for number in range(first, last + 1)]
    return [number * step for number in range(first, last + 1)], slots


def _of_model(samples: Sequence[_Sample], model: str) -> IntervalCounts | None:
    """Join the samples of a model, or of all (empty); None: nothing is known of it."""
    found = [each for each in samples if model in each.models]
    if not found:
        return None
    return IntervalCounts(joined([each.models[model] for each in found]), sum(each.seconds for each in found))


def _recent(samples: Sequence[_Sample]) -> dict[str, dict[str, float | None]]:
    return {model: _summary(_of_model(samples, model)) for model in (samples[-1].models if samples else ())}


def _summary(interval: IntervalCounts | None) -> dict[str, float | None]:
    if interval is None:
        return {}
    counts: dict[str, float | None] = {
        "seconds": interval.seconds,
        "requests": interval.get("requests"),
        "errors": interval.get("errors"),
        "judged_requests": interval.get("met") + interval.get("missed"),
        "input_tokens": interval.get("prompt_tokens") + interval.get("cached_tokens"),
        "output_tokens": interval.get("output_tokens"),
        "preemptions": interval.get("preemptions"),
    }
    return counts | {name: _known(value(interval)) for name, value in SERIES.items()}


def _join(samples: Sequence[_Sample]) -> _Sample:
    names = dict.fromkeys(name for each in samples for name in each.models)
    models = {name: joined([each.models[name] for each in samples if name in each.models]) for name in names}
    return _Sample(samples[-1].at, sum(each.seconds for each in samples), models)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
