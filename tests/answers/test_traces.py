"""Traces of requests: exported when they are over, and passed on to the servers that they are sent to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from gateway_fixtures import wait_for
from kvarn.answers.traces import Traces
from kvarn.observe.traces.exporter import ExportMetrics, SpanExporter
from kvarn.observe.traces.genai_metrics import GenAiExporter
from kvarn.observe.traces.settings import ExportSettings, MetricsExportSettings
from otlp_sink import OtlpSink, attributes_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


class Collected:
    """The shared gateway while it exports to a sink."""

    def __init__(self, server: Any, traces: Traces) -> None:
        self.server, self.traces, self.sink = server, traces, OtlpSink()

    def spans(self, requests: int = 1) -> list[Any]:
        """The spans of so many requests: a client may have the last byte before the request is over."""

        def are_there() -> bool:
            assert self.traces.exporter is not None
            self.server.do(self.traces.exporter.export())
            return sum(span.name.startswith(("GET ", "POST ")) for span in self.sink.spans) >= requests

        wait_for(are_there, f"spans of {requests} requests")
        return self.sink.spans


@pytest.fixture
def collected(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collected]:
    collected = Collected(server, server.gateway.control.traces)
    exporter = SpanExporter(
        ExportSettings("http://collector/v1/traces"),
        ExportMetrics(CollectorRegistry()),
        transport=httpx.MockTransport(collected.sink),
    )
    monkeypatch.setattr(collected.traces, "exporter", exporter)
    yield collected


def test_a_chat_is_exported_under_the_clients_span(collected: Collected, client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT, headers=PARENT)
    spans = collected.spans()
    own = spans[0]
    assert (own.name, own.trace_id.hex(), own.parent_span_id.hex()) == ("POST /v1/chat/completions", TRACE, SPAN)
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{own.span_id.hex()}-01"
    attributes = attributes_of(own)
    assert attributes["http.response.status_code"] == 200
    assert attributes["kvarn.request.id"] == answer.headers["x-request-id"]
    turn = attributes_of(next(span for span in spans if span.name == "chat tiny"))
    usage = answer.json()["usage"]
    assert turn["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert turn["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert turn["gen_ai.response.finish_reasons"] == [answer.json()["choices"][0]["finish_reason"]]
    assert turn["gen_ai.request.max_tokens"] == 5
    assert not any(name.endswith(".messages") for name in turn)


def test_refusals_and_other_requests_have_spans_and_probes_have_none(
    collected: Collected, client: httpx.Client
) -> None:
    client.get("/health")
    client.get("/v1/models/nobody")
    client.post("/v1/chat/completions", json={**CHAT, "model": "nobody"})
    own = [span for span in collected.spans(2) if not span.parent_span_id]
    assert [(span.name, attributes_of(span)["http.response.status_code"]) for span in own] == [
        ("GET /v1/models/{model}", 404),
        ("POST /v1/chat/completions", 404),
    ]


def test_prompts_and_answers_are_sent_only_where_that_is_asked_for(
    collected: Collected, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected.traces, "_contents", {})
    answer = client.post("/v1/chat/completions", json={**CHAT, "n": 2}).json()
    turn = attributes_of(next(span for span in collected.spans() if span.name == "chat tiny"))
    assert json.loads(turn["gen_ai.input.messages"]) == [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    assert json.loads(turn["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": choice["message"]["content"]}],
            "finish_reason": choice["finish_reason"],
        }
        for choice in answer["choices"]
    ]


def test_a_trace_that_its_client_does_not_sample_is_not_exported(collected: Collected, client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    client.get("/v1/models")
    assert collected.spans()[0].name == "GET /v1/models"
    assert answer.headers["traceresponse"].endswith("-00")


def test_without_a_collector_the_clients_trace_is_only_passed_on(server: Any, client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT, headers=PARENT)
    assert answer.headers["traceresponse"] == PARENT["traceparent"]
    assert "traceresponse" not in client.post("/v1/chat/completions", json=CHAT).headers


def test_metrics_of_each_request_to_a_model_are_counted_where_a_collector_takes_them(
    server: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = GenAiExporter(MetricsExportSettings("http://collector/v1/metrics"))
    monkeypatch.setattr(server.gateway.control.traces, "usage", usage)
    client.get("/v1/models")
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
    wait_for(lambda: bool(usage.metrics.points), "the request to be over")
    counts = {metric.name: point.count for (metric, _), point in usage.metrics.points.items()}
    assert counts["gen_ai.server.request.duration"] == 1 == counts["gen_ai.server.time_to_first_token"]
    assert counts["gen_ai.server.time_per_output_token"] == 1
