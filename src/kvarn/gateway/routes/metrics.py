"""`/metrics`: everything Prometheus scrapes."""

from __future__ import annotations

import gzip

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from kvarn.gateway.context import gateway_of

router = APIRouter(tags=["operation"])


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """The gateway's own metrics and those its engines report: as OpenMetrics where `Accept` asks for it, else in
    Prometheus' text format; compressed where `Accept-Encoding` has gzip."""
    body, content_type = gateway_of(request).metrics.render(request.headers.get("accept", ""))
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)
