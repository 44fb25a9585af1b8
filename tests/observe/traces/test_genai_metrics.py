"""Metrics of the GenAI conventions, as OpenTelemetry's own messages read what is sent."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging

import httpx
import msgspec
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from kvarn.config.load import ConfigError
from kvarn.observe.timeline import Event
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.genai_metrics import MAX_SERIES, GenAiExporter
from kvarn.observe.traces.settings import MetricsExportSettings, metrics_export_settings
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from otlp_sink import attributes_of

START = 1_800_000_000.0
TURN = {"prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 5}


def traced(model: str = "chat", **turn) -> TracedRequest:
    moments = [("received", 0.0), ("read", 0.5), ("first_token", 0.8), ("generated", 1.6), ("ended", 2.0)]
    return TracedRequest(
        trace=begin("a", None),
        name="POST /v1/chat/completions",
        request_id="a",
        route="/v1/chat/completions",
        status=200,
        wall_clock_offset_s=0.0,
        events=[Event(name, at_s) for name, at_s in moments],
        turns=[TracedTurn(id="a", model=model, **(TURN | turn))],
    )


class Sink:
    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.exports: list[ExportMetricsServiceRequest] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.statuses:
            return httpx.Response(self.statuses.pop(0))
        assert request.url.path == "/v1/metrics" and request.headers["content-type"] == "application/json"
        self.exports.append(ParseDict(json.loads(gzip.decompress(request.content)), ExportMetricsServiceRequest()))
        return httpx.Response(200)

    @property
    def metrics(self) -> dict:
        (resource,) = self.exports[-1].resource_metrics
        return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


class Exporter(GenAiExporter):
    def __init__(self, sink: Sink) -> None:
        self.now = START
        settings = MetricsExportSettings("http://collector/v1/metrics", resource={"service.name": "kvarn"})
        super().__init__(settings, time=lambda: self.now, transport=httpx.MockTransport(sink))

    def send(self) -> None:
        asyncio.run(self.export())


def test_both_generations_are_sent_with_the_bounds_of_the_conventions() -> None:
    sink = Sink()
    exporter = Exporter(sink)
    exporter.metrics.observe(traced(reasoning_tokens=2))
    exporter.now += 60
    exporter.send()
    metrics = sink.metrics
    assert set(metrics) == {
        *(f"gen_ai.server.{name}" for name in ("request.duration", "time_to_first_token", "time_per_output_token")),
        "gen_ai.client.token.usage",
        *(f"gen_ai.client.inference.operation.{name}" for name in ("input_tokens", "output_tokens")),
        *(f"gen_ai.client.inference.usage.{name}" for name in ("input_tokens", "output_tokens")),
        *(f"gen_ai.client.inference.usage.{name}" for name in ("cache_read.input_tokens", "reasoning.output_tokens")),
    }
    (point,) = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert (point.count, point.sum) == (1, 2.0)
    assert list(point.explicit_bounds) == pytest.approx([0.01 * 2**power for power in range(14)])
    assert list(point.bucket_counts).index(1) == 8 and len(point.bucket_counts) == 15  # 1.28 < 2 <= 2.56
    assert (point.start_time_unix_nano, point.time_unix_nano) == (START * 1e9, (START + 60) * 1e9)
    assert attributes_of(point) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kvarn",
        "gen_ai.request.model": "chat",
        "gen_ai.response.model": "chat",
    }
    (first,) = metrics["gen_ai.server.time_to_first_token"].histogram.data_points
    (each,) = metrics["gen_ai.server.time_per_output_token"].histogram.data_points
    assert first.sum == pytest.approx(0.3) and each.sum == pytest.approx(0.2)
    usage = metrics["gen_ai.client.token.usage"]
    assert usage.unit == "{token}"
    assert usage.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    types = {attributes_of(each)["gen_ai.token.type"]: each.sum for each in usage.histogram.data_points}
    assert types == {"input": 100, "output": 5}


def test_counters_are_monotonic_totals_by_modality_and_grow_from_export_to_export() -> None:
    sink = Sink(503)
    exporter = Exporter(sink)
    exporter.metrics.observe(traced())
    exporter.send()  # the collector is away
    exporter.metrics.observe(traced())
    exporter.send()
    counter = sink.metrics["gen_ai.client.inference.usage.cache_read.input_tokens"].sum
    (point,) = counter.data_points
    assert counter.is_monotonic and counter.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert point.as_int == 128 and attributes_of(point)["gen_ai.token.modality"] == "text"
    assert "gen_ai.client.inference.usage.reasoning.output_tokens" not in sink.metrics


def test_a_collector_that_is_away_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(Sink(404, 404, 404))
    exporter.metrics.observe(traced())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            exporter.send()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("kvarn.")]
    assert [message.count("404") for message in told] == [1]
    assert "OTEL_METRICS_EXPORTER=none" in caplog.text


def test_failures_have_an_error_and_refusals_no_tokens() -> None:
    sink = Sink()
    exporter = Exporter(sink)
    exporter.metrics.observe(traced(outcome="failed"))
    exporter.metrics.observe(traced("other", outcome="failed", refused=True))
    exporter.send()
    failed, refused = sink.metrics["gen_ai.server.request.duration"].histogram.data_points
    assert attributes_of(failed)["error.type"] == "failed" and "error.type" not in attributes_of(refused)
    assert len(sink.metrics["gen_ai.client.inference.operation.input_tokens"].histogram.data_points) == 1


@pytest.mark.parametrize("refused", [False, True])
def test_the_times_of_a_request_that_fell_back_are_those_of_the_turn_that_answered(refused: bool) -> None:
    sink = Sink()
    exporter = Exporter(sink)
    failed = TracedTurn(id="a", model="large", outcome="failed", refused=refused, prompt_tokens=100)
    request = traced("small")
    exporter.metrics.observe(msgspec.structs.replace(request, turns=[failed, *request.turns]))
    exporter.send()
    for name in ("request.duration", "time_to_first_token", "time_per_output_token"):
        (point,) = sink.metrics[f"gen_ai.server.{name}"].histogram.data_points
        assert (point.count, attributes_of(point)["gen_ai.response.model"]) == (1, "small")
    tokens = sink.metrics["gen_ai.client.inference.operation.input_tokens"].histogram.data_points
    assert len(tokens) == (1 if refused else 2)


def test_memory_is_bounded_and_nothing_is_sent_where_nothing_happened() -> None:
    sink = Sink()
    exporter = Exporter(sink)
    exporter.send()
    assert sink.exports == []
    for number in range(MAX_SERIES):
        exporter.metrics.observe(traced(f"m{number}"))
    assert len(exporter.metrics.points) == MAX_SERIES


BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
OWN = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://own/path"}


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        (BASE, "http://collector:4318/v1/metrics"),
        (OWN, "http://own/path"),
        (BASE | OWN, "http://own/path"),
        (BASE | {"OTEL_METRICS_EXPORTER": "none"}, None),
        (BASE | {"OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces/only"}, None),
    ],
)
def test_the_collector_is_that_of_opentelemetrys_variables(environment: dict[str, str], url: str | None) -> None:
    found = metrics_export_settings(environment, pytest.fail)
    assert (None if found is None else found.url) == url


def test_interval_headers_and_what_cannot_be_followed() -> None:
    found = metrics_export_settings(
        BASE | {"OTEL_METRIC_EXPORT_INTERVAL": "5000", "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "api-key=k"}, pytest.fail
    )
    assert found is not None and found.interval_s == 5.0 and found.headers == {"api-key": "k"}
    assert found.resource["service.name"] == "kvarn" and found.resource["service.instance.id"]
    for changed in ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector"}):
        with pytest.raises(ConfigError):
            metrics_export_settings(BASE | changed, pytest.fail)
