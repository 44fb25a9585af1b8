"""A collector of spans: reads exports with OpenTelemetry's own protobuf messages, which refuse what is no OTLP."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass
class OtlpSink:
    """Takes exports, or answers with the statuses of `refusals` first."""

    refusals: list[int] = field(default_factory=list)
    exports: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.refusals:
            return httpx.Response(self.refusals.pop(0), headers={"retry-after": "0"})
        self.headers = dict(request.headers)
        self.exports.append(parsed(gzip.decompress(request.content)))
        return httpx.Response(200, json={})

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def parsed(body: bytes) -> ExportTraceServiceRequest:
    """OTLP's JSON as its message. Protobuf's own JSON has bytes in base64, OTLP's has ids in hexadecimal digits."""
    message = json.loads(body)
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span.update({name: base64.b64encode(bytes.fromhex(span[name])).decode() for name in _IDS})
    return ParseDict(message, ExportTraceServiceRequest())


def attributes_of(span: Any) -> dict[str, Any]:
    return {each.key: _plain(each.value) for each in span.attributes}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))
