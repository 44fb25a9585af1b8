"""VLLM's routes about the server and its adapters, for platform administrators: `/server_info`, `/sleep`,
`/wake_up`, `/is_sleeping`, `/v1/load_lora_adapter`, `/v1/unload_lora_adapter`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

import kvarn
from kvarn.catalog.adapters import AdapterLoader
from kvarn.catalog.models import ServedModel
from kvarn.fleet.desired import spec_of
from kvarn.gateway.dependencies import ADMINISTRATION, PlatformAdminDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import QueryModel, Text
from kvarn.gateway.state import Gateway
from kvarn.store.repositories import deployments
from kvarn.wire.adapters import LoadAdapterRequest, UnloadAdapterRequest
from kvarn.wire.openai.errors import invalid_request, model_not_found

router = json_router("", "administration", ADMINISTRATION)

_ENDS_LATER = "ignored 'mode', requests that run are finished first"


class ServerInfo(TypedDict):
    """The server's version, and each model's settings (as `models[]` of the configuration) and what is known of it."""

    version: str
    models: dict[str, dict[str, Any]]


class Sleeping(TypedDict):
    is_sleeping: bool


class EngineQuery(QueryModel):
    model: Text | None = Field(None, description="Only this model. Default: all that this server runs.")


class SleepQuery(EngineQuery):
    level: int = Field(1, ge=1, le=2, description="Ignored: engines end, and start from mapped weights.")
    mode: Literal["abort", "wait", "keep"] = Field("wait", description="Requests that run are finished first.")


class WakeQuery(EngineQuery):
    tags: list[Text] = Field(default_factory=list, description="Ignored: whole engines are started.")


@router.get("/server_info", summary="The server's settings")
async def server_info(admin: PlatformAdminDep) -> ServerInfo:
    """Version and models with their settings: vLLM's route, in this server's words."""
    models = {
        model.name: {"version": model.version, "settings": spec_of(model.config), "card": model.card}
        for model in admin.gateway.models
    }
    return {"version": kvarn.__version__, "models": models}


@router.post("/sleep", summary="End the engines of all models, or of one")
async def sleep(admin: PlatformAdminDep, record: RecordDep, query: SleepQuery) -> Sleeping:
    """Have the models run by no engine, once their requests are finished: all memory is free then, which `/is_sleeping`
    tells. It is as if each were scaled to 0."""
    if query.mode != "wait":
        record.reply.warnings.append(_ENDS_LATER)
    await _scale(admin, query, 0)
    return await is_sleeping(admin, query)


@router.post("/wake_up", summary="Start the engines of all models again, or of one")
async def wake_up(admin: PlatformAdminDep, query: WakeQuery) -> Sleeping:
    """Have the models run by as many engines as their settings say; `/ready` tells when they take requests."""
    await _scale(admin, query, None)
    return await is_sleeping(admin, query)


@router.get("/is_sleeping", summary="Whether no engine runs")
async def is_sleeping(admin: PlatformAdminDep, query: EngineQuery) -> Sleeping:
    """Whether none of the models has an engine, as after `/sleep`."""
    models = _asked_for(admin.gateway, query.model)
    return {"is_sleeping": not any(each.replicas for model in models for each in model.all_versions)}


async def _scale(admin: PlatformAdminDep, query: EngineQuery, replicas: int | None) -> None:
    models = _asked_for(admin.gateway, query.model)
    async with admin.audited_change() as change:
        for model in models:
            await deployments.scale(change, model.name, replicas, is_configured=not model.version)
    if admin.gateway.control.fleet is not None:
        admin.gateway.control.fleet.wake()


def _asked_for(gateway: Gateway, name: str | None) -> list[ServedModel]:
    """The models whose engines this server runs, or the one that is named. Raises `ApiError`: 404 or 400."""
    own = [model for model in gateway.models if model.config.external is None]
    if name is None:
        return own
    found = gateway.models.named(name)
    if found is None:
        raise model_not_found(name, [model.name for model in own])
    if found.config.external is not None:
        raise invalid_request(f"Another server runs {name!r}: it is not put to sleep here.", "model")
    return [found]


@router.post("/v1/load_lora_adapter", summary="Load a LoRA adapter")
async def load_lora_adapter(admin: PlatformAdminDep, body: LoadAdapterRequest) -> Annotated[Response, str]:
    """Load an adapter from a directory of the server, beside what runs; with `load_inplace`, in the place of one of the
    same name. It is there when this answers; the server's other gateway processes hear of it at the same time. It
    belongs to the model's deployment from now on: replicas and versions that start later have it."""
    return PlainTextResponse(await _loader(admin.gateway).load(body, admin.actor.name))


@router.post("/v1/unload_lora_adapter", summary="Unload a LoRA adapter")
async def unload_lora_adapter(admin: PlatformAdminDep, body: UnloadAdapterRequest) -> Annotated[Response, str]:
    """Take no more requests for an adapter. Those that have begun go on to their end."""
    return PlainTextResponse(await _loader(admin.gateway).unload(body))


def _loader(gateway: Gateway) -> AdapterLoader:
    return AdapterLoader(gateway.config, gateway.models, gateway.catalog.held_requests, gateway.store)
