"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them, for platform administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from kvarn.catalog.adapters import AdapterLoader
from kvarn.gateway.dependencies import ADMINISTRATION, PlatformAdminDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.state import Gateway
from kvarn.wire.adapters import LoadAdapterRequest, UnloadAdapterRequest

router = APIRouter(prefix="/v1", tags=["adapters"], route_class=JsonRoute, dependencies=ADMINISTRATION)


@router.post("/load_lora_adapter", summary="Load a LoRA adapter")
async def load_lora_adapter(admin: PlatformAdminDep, body: LoadAdapterRequest) -> Annotated[Response, str]:
    """Load an adapter from a directory of the server, beside what runs; with `load_inplace`, in the place of one of the
    same name. It is there when this answers; the server's other gateway processes hear of it at the same time. It
    belongs to the model's deployment from now on: replicas and versions that start later have it."""
    return PlainTextResponse(await _loader(admin.gateway).load(body, admin.actor.name))


@router.post("/unload_lora_adapter", summary="Unload a LoRA adapter")
async def unload_lora_adapter(admin: PlatformAdminDep, body: UnloadAdapterRequest) -> Annotated[Response, str]:
    """Take no more requests for an adapter. Those that have begun go on to their end."""
    return PlainTextResponse(await _loader(admin.gateway).unload(body))


def _loader(gateway: Gateway) -> AdapterLoader:
    return AdapterLoader(gateway.config, gateway.models, gateway.catalog.held_requests, gateway.store)
