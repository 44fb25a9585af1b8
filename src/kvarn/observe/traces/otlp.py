"""OTLP's JSON: ids in hexadecimal digits, times as decimal strings of nanoseconds, enums as numbers.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import kvarn
from kvarn.observe.traces.conventions import Attributes, Value
from kvarn.observe.traces.spans import Span
from kvarn.observe.traces.traced import TracedRequest

_ERROR = 2
SCOPE = {"name": "kvarn", "version": kvarn.__version__}


def encode(requests: Iterable[tuple[TracedRequest, list[Span]]], resource: Mapping[str, str]) -> bytes:
    """The body of an export: spans of some requests, and the attributes of the process that made them."""
    spans = [each for request, of_request in requests for each in _spans(request, of_request)]
    found = {
        "resource": {"attributes": attributes_of(dict(resource))},
        "scopeSpans": [{"scope": SCOPE, "spans": spans}],
    }
    return msgspec.json.encode({"resourceSpans": [found]})


def _spans(request: TracedRequest, spans: list[Span]) -> Iterable[dict[str, Any]]:
    trace, offset_s = request.trace, request.wall_clock_offset_s
    first = int(trace.span_id, 16)
    ids = [f"{(first + place) % (1 << 64) or 1:016x}" for place in range(len(spans))]
    for span_id, span in zip(ids, spans, strict=True):
        shown: dict[str, Any] = {
            "traceId": trace.trace_id,
            "spanId": span_id,
            "parentSpanId": trace.parent_id if span.parent is None else ids[span.parent],
            "flags": int(trace.sampled),
            "name": span.name,
            "kind": int(span.kind),
            "startTimeUnixNano": nanoseconds(span.begin_s + offset_s),
            "endTimeUnixNano": nanoseconds(span.end_s + offset_s),
            "attributes": attributes_of(span.attributes),
            "events": [
                {
                    "name": event.name,
                    "timeUnixNano": nanoseconds(event.at_s + offset_s),
                    "attributes": attributes_of(dict(event.attributes)),
                }
                for event in span.events
            ],
            "status": {"code": _ERROR} if span.failed else {},
        }
        if trace.state:
            shown["traceState"] = trace.state
        yield shown


def nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1e9))


def attributes_of(attributes: Mapping[str, Value] | Attributes) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [{"stringValue": each} for each in value]}}
