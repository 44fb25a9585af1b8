"""`/v1/completions`."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from kvarn.answers.completion.operation import start_completion
from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.openapi import EVENTS, json_router
from kvarn.wire.openai.completions import Completion, CompletionRequest

router = json_router("/v1", "completions")


@router.post("/completions", summary="Continue a text", openapi_extra=EVENTS)
async def create_completion(
    gateway: GatewayDep, record: RecordDep, body: CompletionRequest
) -> Annotated[Response, Completion]:
    """Continue one prompt or several, as one object or as a stream of events."""
    run = await start_completion(gateway, record, body)
    return event_stream(run.stream()) if body.stream else json_when_done(run.collect(), run.held)
