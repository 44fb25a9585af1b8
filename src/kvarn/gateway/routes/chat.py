"""`/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.context import gateway_of
from kvarn.gateway.openapi import json_body
from kvarn.gateway.operations.chat import start_chat
from kvarn.gateway.record import record_of
from kvarn.wire.openai.chat import ChatCompletionRequest

router = APIRouter(prefix="/v1/chat", tags=["chat"])


@router.post("/completions", summary="Answer a conversation", openapi_extra=json_body(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer the messages of a chat, as one object or as a stream of events."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, ChatCompletionRequest)
    run = await start_chat(gateway, record_of(request.scope), asked)
    return event_stream(run.stream()) if asked.stream else json_when_done(run.collect())
