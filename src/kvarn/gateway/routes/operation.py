"""`/health`, `/ping`: the process lives. `/ready`: every model takes requests. `/load` and `/metrics`: how busy it is.
`/` and `/version`: what this is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

import kvarn
from kvarn.catalog.models import ServedModel
from kvarn.gateway.answer import json_response
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, QueryModel
from kvarn.observe.exposition import page
from kvarn.observe.merge import read_families
from kvarn.quality.monitor import QualityMonitor

router = json_router("", "operation")

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><g stroke="#c60" stroke-width="2">'
    '<path d="M8 1v14M1 8h14M3 3l10 10M13 3 3 13"/></g></svg>'
)
"""A mill's sails."""
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"description": "The progress of each model, in the same shape.", "content": {"application/json": {}}}
}


class Root(TypedDict):
    name: str
    version: str
    models: list[str]
    links: dict[str, str]


class Version(TypedDict):
    version: str


class Load(TypedDict):
    server_load: int


class Health(TypedDict):
    status: str


class ModelState(TypedDict):
    """Readiness of one model. `drifted`: replicas that answer golden prompts wrongly, and how."""

    ready: bool
    state: str
    stage: NotRequired[str]
    progress: NotRequired[float]
    error: NotRequired[str]
    replicas: NotRequired[dict[str, str]]
    drifted: NotRequired[dict[str, str]]


class Readiness(TypedDict):
    """Readiness of each model; `status` is `ready` or `not_ready`."""

    status: str
    models: dict[str, ModelState]
    database: str


@router.head("/", include_in_schema=False)
@router.get("/", summary="Name, version and links")
async def root(gateway: GatewayDep) -> Root:
    links = {
        "docs": "/docs",
        "openapi": "/openapi.json",
        "models": "/v1/models",
        "metrics": "/metrics",
        "ready": "/ready",
    }
    if gateway.config.console.enabled:
        links["console"] = "/console/"
    names = [model.name for model in gateway.models]
    return {"name": "kvarn", "version": kvarn.__version__, "models": names, "links": links}


@router.get("/favicon.ico", include_in_schema=False)
async def favicon() -> Response:
    headers = {"cache-control": "public, max-age=86400"}
    return Response(_ICON, media_type="image/svg+xml", headers=headers)


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request, gateway: GatewayDep) -> Response:
    """The metrics of all gateway processes and of the engines: as OpenMetrics where `Accept` asks for it, else in
    Prometheus' text format; compressed where `Accept-Encoding` has gzip."""
    registry = gateway.metrics.registry if gateway.control.shared is None else await gateway.control.shared.metrics()
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    families, accept = read_families(registry), request.headers.get("accept", "")
    # A thread: for many models it takes longer than a token may wait.
    body, content_type = await asyncio.to_thread(
        page, families, accept, vllm_names=gateway.config.gateway.vllm_metric_names, is_packed=is_packed
    )
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
    if is_packed:
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)


@router.get("/version", summary="The version of the server")
async def version() -> Version:
    return {"version": kvarn.__version__}


@router.get("/load", summary="Number of requests in flight")
async def load(gateway: GatewayDep) -> Load:
    """Requests that are being answered, waiting ones among them and this one not, in vLLM's form."""
    in_flight = gateway.metrics.requests_in_flight
    if gateway.control.shared is not None:
        families = await gateway.control.shared.metrics()
        in_flight = int(families.get_sample_value("kvarn_requests_in_flight") or 1)
    return {"server_load": in_flight - 1}


@router.post("/ping", include_in_schema=False)
@router.get("/ping", summary="`/health`, by the name that SageMaker asks for")
@router.get("/health", summary="Whether the gateway's process lives")
async def health() -> Health:
    """Answer 200 as long as the event loop turns, whatever the models do: restart the process when this fails."""
    return {"status": "ok"}


class ReadyQuery(QueryModel):
    models: Literal["all", "any"] = "all"


@router.get("/ready", summary="Whether every model takes requests", responses=_NOT_READY, dependencies=CHECKED)
async def ready(request: Request, gateway: GatewayDep, query: ReadyQuery) -> Annotated[Response, Readiness]:
    """Answer 200 when all models are ready, else 503 with the progress of each: send traffic when this succeeds. Models
    that are to have no replicas now, or have them on spot capacity for the batch tier, are not waited for. A gateway
    that stands by or is being stopped is not ready. `models=any`: one model that is ready is enough, for gateways in
    front of many.

    `database` is `up`, `read_only` or `away`. Answers are given without it, so it makes no server less ready.
    """
    needed = [model.ready for model in gateway.models if model.replicas and model.config.spot != "batch"]
    enough = all(needed) if query.models == "all" else any(model.ready for model in gateway.models) or not needed
    is_ready = enough and not (gateway.catalog.held_requests.is_standby or request.app.state.stopping.is_set())
    answer: Readiness = {
        "status": "ready" if is_ready else "not_ready",
        "models": {model.name: _state(model, gateway.control.monitor) for model in gateway.models},
        "database": str(gateway.store.health.state),
    }
    return json_response(answer, 200 if is_ready else 503)


def _state(model: ServedModel, monitor: QualityMonitor | None) -> ModelState:
    stage, fraction = model.progress
    state: ModelState = {"ready": model.ready, "state": str(model.state)}
    if not model.ready:
        state |= {"stage": stage, "progress": round(fraction, 3)}
    if model.load_error is not None:
        state["error"] = model.load_error
    if len(model.replicas) > 1:
        state["replicas"] = {name: str(replica.state) for name, replica in model.replicas.items()}
    drifted = (
        {} if monitor is None else {name: each for name, each in monitor.drifted.items() if each.model == model.name}
    )
    if drifted:
        state["drifted"] = {name: each.detail for name, each in drifted.items()}
    return state
