"""`/v1/messages`: Anthropic's API, for its clients."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_response, json_when_done
from kvarn.gateway.openapi import EVENTS, shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.serving.messages.operation import count_tokens, start_message
from kvarn.wire.anthropic.answer import Message, TokenCount
from kvarn.wire.anthropic.messages import CountTokensRequest, MessagesRequest

router = APIRouter(prefix="/v1/messages", tags=["messages"])


@router.post("", summary="Answer a conversation, in Anthropic's words", openapi_extra=EVENTS)
@shapes(Message, MessagesRequest)
async def create_message(request: Request) -> Response:
    """Answer messages, as one object or as a stream of Anthropic's events."""
    gateway, record = gateway_of(request), record_of(request.scope)
    asked = await gateway.read(request, MessagesRequest)
    record.headers["request-id"] = record.request_id
    run = await start_message(gateway, record, asked)
    return event_stream(run.stream(), end=b"", tell=run.error_event) if asked.stream else json_when_done(run.collect())


@router.post("/count_tokens", summary="Count a prompt's tokens")
@shapes(TokenCount, CountTokensRequest)
async def count_message_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message would have."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, CountTokensRequest)
    return json_response(await count_tokens(gateway, record_of(request.scope), asked))
