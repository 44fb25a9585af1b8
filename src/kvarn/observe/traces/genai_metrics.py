"""Metrics of the GenAI conventions, both generations of them, sent to a collector at intervals.

    gen_ai.server.request.duration, .time_to_first_token, .time_per_output_token
    gen_ai.client.token.usage                                       until the next line's replace it
    gen_ai.client.inference.usage.*, .operation.input_tokens, .operation.output_tokens

Names, attributes and bounds stand in `conventions.py`. What is sent are totals since the start (cumulative
temporality), so what a collector does not take is not lost.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.observe.traces.conventions import (
    INPUT_TOKENS,
    MODALITY,
    OUTPUT_TOKENS,
    REQUEST_DURATION,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    TOKEN_USAGE,
    GenAiMetric,
    metric_attributes,
    usage_counter,
)
from kvarn.observe.traces.otlp import SCOPE, attributes_of, nanoseconds
from kvarn.observe.traces.settings import MetricsExportSettings, metrics_export_settings
from kvarn.observe.traces.traced import TracedRequest, TracedTurn

MAX_SERIES = 2000
"""Combinations of a metric and its attributes; what would be one more is not counted."""
_CUMULATIVE = 2
_COUNTERS = {kind: usage_counter(kind) for kind in ("input_tokens", "output_tokens")}
_READ, _REASONING = usage_counter("cache_read.input_tokens"), usage_counter("reasoning.output_tokens")

_log = logging.getLogger("kvarn.observe")


@dataclass(slots=True)
class _Point:
    attributes: Mapping[str, str]
    buckets: list[int]
    count: int = 0
    total: float = 0.0

    def add(self, value: float, bounds: Sequence[float] | None) -> None:
        self.count += 1
        self.total += value
        if bounds is not None:
            self.buckets[bisect_left(bounds, value)] += 1


@dataclass(slots=True)
class GenAiMetrics:
    """Totals since `started_at`, UNIX seconds."""

    started_at: float
    points: dict[tuple[GenAiMetric, tuple[str, ...]], _Point] = field(default_factory=dict)

    def observe(self, request: TracedRequest) -> None:
        """Count a request that is over: its times, which are those of its last turn, as a fallback's turn comes after
        one that failed; and the tokens of each turn that reached a model."""
        if request.turns:
            self._observe_times(request, request.turns[-1])
        for turn in request.turns:
            if turn.refused:
                continue
            attributes = metric_attributes(request, turn)
            used = {"input_tokens": turn.prompt_tokens, "output_tokens": turn.output_tokens}
            for (name, tokens), metric in zip(used.items(), (INPUT_TOKENS, OUTPUT_TOKENS), strict=True):
                kind = {"gen_ai.token.type": name.removesuffix("_tokens")}
                self._add(TOKEN_USAGE, tokens, attributes | kind)
                self._add(metric, tokens, attributes)
                self._add(_COUNTERS[name], tokens, attributes | MODALITY)
            if turn.cached_tokens:
                self._add(_READ, turn.cached_tokens, attributes | MODALITY)
            if turn.reasoning_tokens:
                self._add(_REASONING, turn.reasoning_tokens, attributes | MODALITY)

    def _observe_times(self, request: TracedRequest, turn: TracedTurn) -> None:
        attributes, ttft_s = metric_attributes(request, turn), request.ttft_s
        self._add(REQUEST_DURATION, request.total_s, attributes)
        if turn.refused:
            return
        if ttft_s is not None:
            self._add(TIME_TO_FIRST_TOKEN, ttft_s, attributes)
        if (tpot_s := _tpot_s(request, turn.output_tokens, turn.choices)) is not None:
            self._add(TIME_PER_OUTPUT_TOKEN, tpot_s, attributes)

    def _add(self, metric: GenAiMetric, value: float, attributes: Mapping[str, str]) -> None:
        key = metric, (*attributes.keys(), *attributes.values())
        point = self.points.get(key)
        if point is None:
            if len(self.points) >= MAX_SERIES:
                return
            point = self.points[key] = _Point(attributes, [0] * (1 + len(metric.bounds or ())))
        point.add(value, metric.bounds)

    def encode(self, resource: Mapping[str, str], now: float) -> bytes:
        """The body of an export, as OTLP's JSON."""
        found = {
            "resource": {"attributes": attributes_of(dict(resource))},
            "scopeMetrics": [{"scope": SCOPE, "metrics": list(self._metrics(now))}],
        }
        return msgspec.json.encode({"resourceMetrics": [found]})

    def _metrics(self, now: float) -> Iterator[dict[str, Any]]:
        for metric in dict.fromkeys(metric for metric, _ in self.points):
            points = [point for (each, _), point in self.points.items() if each is metric]
            times = {"startTimeUnixNano": nanoseconds(self.started_at), "timeUnixNano": nanoseconds(now)}
            shown: dict[str, Any] = {"name": metric.name, "unit": metric.unit, "description": metric.description}
            if metric.bounds is None:
                numbers = [{"asInt": str(round(point.total))} for point in points]
                shown["sum"] = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
            else:
                numbers = [_histogram(point, metric.bounds) for point in points]
                shown["histogram"] = {"aggregationTemporality": _CUMULATIVE}
            shown["sum" if metric.bounds is None else "histogram"]["dataPoints"] = [
                {"attributes": attributes_of(dict(point.attributes)), **times, **each}
                for point, each in zip(points, numbers, strict=True)
            ]
            yield shown


def _histogram(point: _Point, bounds: Sequence[float]) -> dict[str, Any]:
    return {
        "count": str(point.count),
        "sum": point.total,
        "bucketCounts": [str(count) for count in point.buckets],
        "explicitBounds": list(bounds),
    }


def _tpot_s(request: TracedRequest, output_tokens: int, choices: int) -> float | None:
    """Mean time per output token of a choice after its first, from the first token to the last of all choices."""
    first_s = next((event.at_s for event in request.events if event.name == "first_token"), None)
    last_s = next((event.at_s for event in reversed(request.events) if event.name == "generated"), None)
    if first_s is None or last_s is None or output_tokens <= choices:
        return None
    return (last_s - first_s) / (output_tokens / choices - 1)


def make_genai_exporter() -> GenAiExporter | None:
    """The exporter that the environment asks for; None: it names no collector. Raises `ConfigError`."""
    settings = metrics_export_settings(os.environ, _log.warning)
    return None if settings is None else GenAiExporter(settings)


class GenAiExporter:
    """Counts requests and sends the totals to a collector. Belongs to one event loop."""

    def __init__(
        self,
        settings: MetricsExportSettings,
        *,
        time: Callable[[], float] = SYSTEM_CLOCK.time,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = GenAiMetrics(time())
        self._time = time
        self._failed = False
        self._http = settings.client(transport)

    async def export(self) -> None:
        """Send the totals; a failure is logged once, and the next time tells all again."""
        if self.metrics.points:
            body = self.metrics.encode(self.settings.resource, self._time())
            await asyncio.to_thread(self._send, body)

    async def close(self) -> None:
        """Send the totals once more."""
        await self.export()
        self._http.close()

    def _send(self, body: bytes) -> None:
        try:
            answer = self._http.post(self.settings.url, content=gzip.compress(body, 1))
            problem = "" if answer.is_success else f"status {answer.status_code}: {answer.text[:200]}"
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem and not self._failed:
            hint = "OTEL_METRICS_EXPORTER=none stops this"
            _log.warning("metrics could not be sent to the collector, retrying (%s): %s", hint, problem)
        self._failed = bool(problem)
