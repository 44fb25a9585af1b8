"""`/v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.openapi import EVENTS, shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.serving.completions.operation import start_completion
from kvarn.wire.openai.completions import Completion, CompletionRequest

router = APIRouter(prefix="/v1", tags=["completions"])


@router.post("/completions", summary="Continue a text", openapi_extra=EVENTS)
@shapes(Completion, CompletionRequest)
async def create_completion(request: Request) -> Response:
    """Continue one prompt or several, as one object or as a stream of events."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, CompletionRequest)
    run = await start_completion(gateway, record_of(request.scope), asked)
    return event_stream(run.stream()) if asked.stream else json_when_done(run.collect(), run.held)
