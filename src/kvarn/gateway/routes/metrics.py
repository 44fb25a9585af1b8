"""`/metrics`: everything Prometheus scrapes."""

from __future__ import annotations

import gzip

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import PlainTextResponse, Response

from kvarn.gateway.dependencies import GatewayDep

router = APIRouter(tags=["operation"])


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request, gateway: GatewayDep) -> Response:
    """The metrics of all gateway processes and of the engines: as OpenMetrics where `Accept` asks for it, else in
    Prometheus' text format; compressed where `Accept-Encoding` has gzip."""
    registry = gateway.metrics.registry if gateway.shared is None else await gateway.shared.metrics()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(registry)
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)
