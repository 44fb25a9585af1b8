"""`/v1/moderations`: whether texts are harmful, and in what way."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep, json_body
from kvarn.gateway.openapi import JsonRoute
from kvarn.serving.moderation.operation import start_moderation
from kvarn.wire.openai.moderations import ModerationList, ModerationRequest

router = APIRouter(prefix="/v1", tags=["moderations"], route_class=JsonRoute)


@router.post("/moderations", summary="Moderate texts")
async def create_moderation(
    gateway: GatewayDep, record: RecordDep, body: Annotated[ModerationRequest, json_body(ModerationRequest)]
) -> Annotated[Response, ModerationList]:
    """Look at one text or several: a score from 0 to 1 for each of OpenAI's categories."""
    return json_when_done(await start_moderation(gateway, record, body))
