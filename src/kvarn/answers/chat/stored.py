"""Chat completions that are kept: written when they are finished, read again by their id."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from msgspec import UNSET

from kvarn.answers.context import ServingContext
from kvarn.answers.record import RequestRecord
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import StoredCompletion
from kvarn.store.repositories.conversations.stored_completions import add_completion
from kvarn.wire.openai.chat.answer import ChatCompletion
from kvarn.wire.openai.chat.request import ChatCompletionRequest, Tool
from kvarn.wire.openai.hosted import HostedTool

_log = logging.getLogger("kvarn.answers")

_REQUEST_FIELDS = (
    *("seed", "temperature", "top_p", "presence_penalty", "frequency_penalty", "max_completion_tokens", "tool_choice"),
    *("parallel_tool_calls", "response_format"),
)
"""Fields of the request that a stored completion shows."""


async def keep_completion(
    serving: ServingContext,
    record: RequestRecord,
    request: ChatCompletionRequest,
    answer: ChatCompletion,
    logprobs_bytes: int,
) -> list[str]:
    """Store a finished answer; returns warnings. Where the database is away, or the answer has more log-probabilities
    than a body may have bytes, the client gets its answer all the same."""
    max_bytes = serving.gateway_config.max_body_bytes
    if logprobs_bytes > max_bytes:
        return [
            f"The answer could not be stored: its log-probabilities take more than gateway.max_body_bytes, {max_bytes}."
        ]
    fields_sent = request.model_dump(include=set(_REQUEST_FIELDS), exclude_none=True)
    fields = msgspec.structs.asdict(answer).items()
    body = {name: value for name, value in fields if value is not UNSET} | {
        "request_id": record.request_id,
        "input_user": request.user,
        **{name: fields_sent.get(name) for name in _REQUEST_FIELDS},
        "tools": None if request.tools is None else [_as_kept(tool) for tool in request.tools],
    }
    messages = [message.model_dump(exclude_unset=True) for message in request.messages]
    try:
        await add_completion(
            serving.store, record.principal.owner, body, metadata=request.metadata or {}, messages=messages
        )
    except StoreAwayError as error:
        _log.warning("completion %s could not be stored: %s", answer.id, error)
        return ["The answer could not be stored: the database does not take it at present."]
    record.stored = True
    return []


def describe_completion(stored: StoredCompletion) -> dict[str, Any]:
    return {**stored.body, "metadata": stored.extra}


def stored_messages(stored: StoredCompletion) -> list[dict[str, Any]]:
    """The messages that a stored completion answers, each with an id of its own."""
    return [_message(f"{stored.id}-{index}", message) for index, message in enumerate(stored.messages)]


def _message(message_id: str, message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {
        "name": None,
        "refusal": None,
        **message,
        "id": message_id,
        "content": content if parts is None else "\n".join(part["text"] for part in parts),
        "content_parts": parts,
    }


def _as_kept(tool: Tool | HostedTool) -> dict[str, Any]:
    return tool.without_secrets if isinstance(tool, HostedTool) else tool.model_dump(exclude_none=True)
