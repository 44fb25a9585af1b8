"""The operations that lines of a batch may ask for: what the routes of the same paths do, without HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kvarn.answers.completion.operation import start_completion
from kvarn.answers.encoders.operation import start_embedding
from kvarn.answers.moderation.checks import ALIASES
from kvarn.answers.moderation.operation import start_moderation
from kvarn.answers.record import RequestRecord
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.operation import start_response
from kvarn.tools.chat import start_tool_chat
from kvarn.tools.messages import start_tool_message
from kvarn.wire.anthropic.messages import MessagesRequest
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.encoders import EmbeddingRequest, ModerationRequest
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.parse import parse_request
from kvarn.wire.openai.responses.request import ResponseRequest

MODERATIONS = "/v1/moderations"

Operation = Callable[[ResponsesContext, RequestRecord, bytes], Awaitable[object]]
"""Answers a request body; raises what the operation of its path raises."""


def _generating(request_type: type[Any], start: Callable[..., Awaitable[Any]]) -> Operation:
    """An operation whose answer is collected whole; `start` begins it."""

    async def operate(serving: ResponsesContext, record: RequestRecord, body: bytes) -> object:
        request = parse_request(request_type, body, record.reply.warnings)
        for name in ("stream", "background"):
            if getattr(request, name, None):
                raise invalid_request(f"'{name}' must be false or left out in a batch.", name, "unsupported_value")
        return await (await start(serving, record, request)).collect()

    return operate


async def _embedding(serving: ResponsesContext, record: RequestRecord, body: bytes) -> object:
    work, _ = await start_embedding(serving, record, parse_request(EmbeddingRequest, body, record.reply.warnings))
    return await work


async def _moderation(serving: ResponsesContext, record: RequestRecord, body: bytes) -> object:
    return await (
        await start_moderation(serving, record, parse_request(ModerationRequest, body, record.reply.warnings))
    )


ENDPOINTS: Mapping[str, Operation] = {
    "/v1/chat/completions": _generating(ChatCompletionRequest, start_tool_chat),
    "/v1/completions": _generating(CompletionRequest, start_completion),
    "/v1/embeddings": _embedding,
    "/v1/messages": _generating(MessagesRequest, start_tool_message),
    MODERATIONS: _moderation,
    "/v1/responses": _generating(ResponseRequest, start_response),
}


def answering_model(serving: ResponsesContext, endpoint: str, name: str | None) -> str | None:
    """The model that answers what asks for `name`: a moderation may name none, or an alias, and be answered by a
    served model all the same."""
    if endpoint == MODERATIONS and (name is None or name in ALIASES):
        return serving.moderation.moderator.name
    return name
