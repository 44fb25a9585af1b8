"""`/v1/messages`: Anthropic's API, for its clients."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from kvarn.answers.messages.operation import count_tokens
from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.openapi import EVENTS, json_router
from kvarn.tools.messages import start_tool_message
from kvarn.wire.anthropic.answer import Message, TokenCount
from kvarn.wire.anthropic.messages import CountTokensRequest, MessagesRequest

router = json_router("/v1/messages", "messages")


@router.post("", summary="Answer a conversation, in Anthropic's words", openapi_extra=EVENTS)
async def create_message(gateway: GatewayDep, record: RecordDep, body: MessagesRequest) -> Annotated[Response, Message]:
    """Answer messages, as one object or as a stream of Anthropic's events."""
    run = await start_tool_message(gateway, record, body)
    return event_stream(run.stream()) if body.stream else json_when_done(run.collect())


@router.post("/count_tokens", summary="Count a prompt's tokens")
async def count_message_tokens(gateway: GatewayDep, record: RecordDep, body: CountTokensRequest) -> TokenCount:
    return await count_tokens(gateway, record, body)
