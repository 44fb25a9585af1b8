"""`/console/api/plan`: how many of which devices a model needs for a traffic and its targets, and what that costs.

A plan is made of what the request says, of a table of devices and of a table of well-known models. Of this server it
has the config.json of a served model, for whose key may ask it; nothing of traffic, tenants or other models.
"""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends
from msgspec import Struct
from starlette.responses import Response

from kvarn.gateway.body import JsonBody
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.viewer import ConsoleViewer, Viewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.state import Gateway
from kvarn.planner.devices import device_table
from kvarn.planner.models import preset_names
from kvarn.planner.profile import profile_of
from kvarn.planner.request import PlanRequest
from kvarn.text.json_file import read_json
from kvarn.traffic.presets import PRESETS, traffic_of

router = console_router()

_PROFILED = 200
"""Conversations of a kind of traffic that its means are taken of."""

PlanBody = Annotated[PlanRequest, Depends(JsonBody(PlanRequest))]


class DeviceChoice(Struct, frozen=True, kw_only=True):
    name: str
    title: str
    memory_gb: float
    price: float | None
    """Dollars an hour; null: the table has none."""
    price_date: str


class TrafficChoice(Struct, frozen=True, kw_only=True):
    """Lengths of a kind of traffic, in the mean."""

    name: str
    title: str
    input_tokens: int
    output_tokens: int
    cached_share: float
    """Part of the prompts' tokens that a prefix cache with room for everything finds."""


class PlanChoices(Struct, frozen=True, kw_only=True):
    served: list[str]
    """Models of this server that the viewer may use and that it has the config.json of."""
    presets: list[str]
    devices: list[DeviceChoice]
    traffic: list[TrafficChoice]


@router.get("/plan")
async def get_choices(gateway: GatewayDep, viewer: ConsoleViewer) -> PlanChoices:
    """Models, devices and kinds of traffic that a plan may be asked for."""
    served = await asyncio.to_thread(_with_config, gateway, viewer)
    return PlanChoices(
        served=served, presets=preset_names(), devices=_devices(), traffic=await asyncio.to_thread(_traffic)
    )


@router.post("/plan")
async def make_plan(gateway: GatewayDep, viewer: ConsoleViewer, body: PlanBody) -> Annotated[Response, dict[str, Any]]:
    """The plan (`kvarn plan --json`). Its `model` may be the name of a model that is served here. Raises `ApiError`
    400: it cannot be made, and what to do."""
    text = await _plan(gateway, viewer, body, "json")
    return Response(text, media_type="application/json")


@router.post("/plan/page")
async def make_page(gateway: GatewayDep, viewer: ConsoleViewer, body: PlanBody) -> Response:
    """The plan as a page that needs no other file (`kvarn plan --html`). Raises as `make_plan` does."""
    text = await _plan(gateway, viewer, body, "html")
    headers = {"content-disposition": 'attachment; filename="plan.html"'}  # never shown as a page of this server
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


async def _plan(gateway: Gateway, viewer: Viewer, asked: PlanRequest, want: Literal["json", "html"]) -> str:
    if isinstance(asked.model, str) and (path := _served_config(gateway, viewer, asked.model)) is not None:
        config = await asyncio.to_thread(read_json, path, required=True)
        asked = asked.model_copy(update={"name": asked.name or asked.model, "model": config})
    return await gateway.control.planning.plan(viewer.principal.organization_id, asked, want)


def _with_config(gateway: Gateway, viewer: Viewer) -> list[str]:
    names = [model.name for model in gateway.models if viewer.may_use(model.name)]
    return [name for name in names if _served_config(gateway, viewer, name) is not None]


def _served_config(gateway: Gateway, viewer: Viewer, name: str) -> Path | None:
    """The config.json of a model by its name here; None: it is not served, not for the viewer, or has none."""
    if not viewer.may_use(name):
        return None
    model = next((each for each in gateway.models if each.name == name and each.config.external is None), None)
    path = None if model is None else model.directory / "config.json"
    return path if path is not None and path.is_file() else None


def _devices() -> list[DeviceChoice]:
    return [
        DeviceChoice(
            name=name,
            title=device.name,
            memory_gb=device.memory_gb.value,
            price=None if device.price_per_hour is None else device.price_per_hour.value,
            price_date="" if device.price_per_hour is None else str(device.price_per_hour.date),
        )
        for name, device in device_table().devices.items()
    ]


@cache
def _traffic() -> list[TrafficChoice]:
    return [_profile(name) for name in PRESETS]


def _profile(name: str) -> TrafficChoice:
    """Means of a kind of traffic, over its first conversations."""
    found = profile_of(islice(traffic_of(name, rps=1.0), _PROFILED), rate_rps=1.0, source=name)
    return TrafficChoice(
        name=name,
        title=f"{name}: {PRESETS[name].summary}",
        input_tokens=round(_mean(found.input_tokens)),
        output_tokens=round(_mean(found.output_tokens)),
        cached_share=round(found.cached_share, 2),
    )


def _mean(lengths: float | tuple[float, ...]) -> float:
    return sum(lengths) / len(lengths) if isinstance(lengths, tuple) else lengths
