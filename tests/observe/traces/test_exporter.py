"""The export of spans: nothing is lost while a collector is away for a short time, and nothing grows without bound."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry

from kvarn.observe.timeline import Event
from kvarn.observe.traces import exporter as module
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.exporter import ExportMetrics, SpanExporter
from kvarn.observe.traces.settings import ExportSettings
from kvarn.observe.traces.traced import TracedRequest
from otlp_sink import OtlpSink


def traced(name: str) -> TracedRequest:
    events = [Event("received", 0.0)]
    return TracedRequest(trace=begin(name, None), name=name, request_id=name, wall_clock_offset_s=0.0, events=events)


class Exporter(SpanExporter):
    """An exporter to a sink, and its counts."""

    def __init__(self, sink: OtlpSink) -> None:
        self.registry = CollectorRegistry()
        settings = ExportSettings("http://collector/v1/traces", {"api-key": "k"})
        self.now = 100.0
        transport = httpx.MockTransport(sink)
        super().__init__(settings, ExportMetrics(self.registry), clock=lambda: self.now, transport=transport)

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"kvarn_traces_{name}_total")


def test_requests_are_sent_in_order_in_batches() -> None:
    sink = OtlpSink()
    exporter = Exporter(sink)
    for number in range(130):
        exporter.add(traced(str(number)))
    asyncio.run(exporter.export())
    assert [span.name for span in sink.spans] == [str(number) for number in range(130)]
    assert len(sink.exports) == 3
    assert sink.headers["api-key"] == "k"
    assert (exporter.count("exported"), exporter.count("dropped")) == (130, 0)


def test_what_a_busy_collector_did_not_take_is_sent_again_after_a_pause() -> None:
    sink = OtlpSink([503, 429])
    exporter = Exporter(sink)
    exporter.add(traced("a"))
    for _ in range(2):
        asyncio.run(exporter.export())
        asyncio.run(exporter.export())  # too early: nothing is sent
        exporter.add(traced("b"))
        exporter.now += 30
    assert sink.spans == [] and sink.refusals == []
    asyncio.run(exporter.export())
    assert [span.name for span in sink.spans] == ["a", "b", "b"]


def test_what_a_collector_refuses_is_counted() -> None:
    exporter = Exporter(OtlpSink([400]))
    exporter.add(traced("a"))
    asyncio.run(exporter.export())
    assert (exporter.count("exported"), exporter.count("dropped")) == (0, 1)


def test_the_oldest_are_dropped_where_too_many_wait() -> None:
    sink = OtlpSink()
    exporter = Exporter(sink)
    for number in range(module.MAX_REQUESTS + 2):
        exporter.add(traced(str(number)))
    asyncio.run(exporter.export())
    assert sink.spans[0].name == "2"
    assert exporter.count("dropped") == 2


def test_an_exporter_that_closes_tries_once_and_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    sink = OtlpSink([503])
    exporter = Exporter(sink)
    exporter.add(traced("a"))
    asyncio.run(exporter.close())
    assert exporter.count("dropped") == 1
    assert "spans were not exported: the collector is away" in caplog.text
