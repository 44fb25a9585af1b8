"""Routers of the console's data."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from kvarn.gateway.console.paths import API
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.record import record_of

_PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def console_router() -> APIRouter:
    """A router below `/console/api`. Its answers are one person's: no cache keeps them. Like `json_router`, its routes
    take pydantic models and return what msgspec encodes; they are no part of the public API's description."""
    return APIRouter(
        prefix=API, route_class=JsonRoute, include_in_schema=False, dependencies=[Depends(_mark_as_private)]
    )


async def _mark_as_private(request: Request) -> None:
    record_of(request.scope).reply.headers |= _PRIVATE
