"""`/v1/moderations`: whether texts are harmful, and in what way."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_when_done
from kvarn.gateway.openapi import shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.serving.moderation.operation import start_moderation
from kvarn.wire.openai.moderations import ModerationList, ModerationRequest

router = APIRouter(prefix="/v1", tags=["moderations"])


@router.post("/moderations", summary="Moderate texts")
@shapes(ModerationList, ModerationRequest)
async def create_moderation(request: Request) -> Response:
    """Look at one text or several: a score from 0 to 1 for each of OpenAI's categories."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, ModerationRequest)
    return json_when_done(await start_moderation(gateway, record_of(request.scope), asked))
