"""`/metrics`: everything Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from kvarn.gateway.context import gateway_of

router = APIRouter(tags=["operation"])


@router.get("/metrics", summary="Metrics in Prometheus' text format", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Render the metrics of all gateway processes and those the engines report."""
    gateway = gateway_of(request)
    registry = gateway.metrics.registry if gateway.shared is None else await gateway.shared.metrics()
    return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})
