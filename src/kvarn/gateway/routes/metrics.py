"""`/metrics`: everything Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from kvarn.gateway.context import gateway_of

router = APIRouter(tags=["operation"])


@router.get("/metrics", summary="Metrics in Prometheus' text format", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Render the gateway's own metrics and those its engines report."""
    return Response(gateway_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})
