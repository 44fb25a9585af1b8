"""The answers of `/v1/responses`: the response, and the events of its stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvarn.wire.openai.chat.answer import TokenLogprobs
from kvarn.wire.openai.responses.items import StoredItem
from kvarn.wire.openai.usage import Usage

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ENDED: frozenset[str] = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""States in which nothing more is written."""


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt's tokens came from. Writing to the cache is free and not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's tokens were for."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


def response_usage(usage: Usage) -> ResponseUsage:
    """Usage in the words of this endpoint."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.completion_tokens_details.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed; `code` is one of OpenAI's."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it stands: what was asked, how far it is, what it says so far."""

    id: str
    created_at: int
    model: str
    object: str = "response"
    status: ResponseStatus = "in_progress"
    completed_at: int | None = None
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[StoredItem] = msgspec.field(default_factory=list)
    usage: ResponseUsage | UnsetType = UNSET
    """Once it has ended."""
    store: bool = True
    """Whether it is (or will be) kept."""
    previous_response_id: str | None = None
    conversation: dict[str, str] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    truncation: Literal["auto", "disabled"] = "disabled"
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int = 0
    service_tier: str | None = None
    reasoning: None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | UnsetType = UNSET
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    warnings: list[str] | UnsetType = UNSET
    """What may be wrong with the calls it makes."""


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens a response's prompt would have."""

    input_tokens: int
    object: str = "response.input_tokens"


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The response itself has changed: `response.created`, `.queued`, `.in_progress`, and how it ended."""

    type: str
    response: Response
    sequence_number: int


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item begins or ends: `response.output_item.added`, `.done`."""

    type: str
    output_index: int
    item: StoredItem
    sequence_number: int


class ContentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a part of an item's content."""

    item_id: str
    output_index: int
    content_index: int
    sequence_number: int


class PartEvent(ContentEvent, frozen=True, kw_only=True):
    """A part of a message begins or ends: `response.content_part.added`, `.done`."""

    type: str
    part: dict[str, Any]


class TextDeltaEvent(ContentEvent, frozen=True, kw_only=True):
    """More text."""

    delta: str
    logprobs: list[TokenLogprobs | msgspec.Raw]
    type: str = "response.output_text.delta"


class TextDoneEvent(ContentEvent, frozen=True, kw_only=True):
    """The text has ended."""

    text: str
    logprobs: list[TokenLogprobs | msgspec.Raw]
    type: str = "response.output_text.done"


class RefusalDeltaEvent(ContentEvent, frozen=True, kw_only=True):
    """More of a refusal."""

    delta: str
    type: str = "response.refusal.delta"


class RefusalDoneEvent(ContentEvent, frozen=True, kw_only=True):
    """The refusal has ended."""

    refusal: str
    type: str = "response.refusal.done"


class ArgumentsDeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str
    sequence_number: int
    type: str = "response.function_call_arguments.delta"


class ArgumentsDoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A call's arguments have ended."""

    item_id: str
    name: str
    output_index: int
    arguments: str
    sequence_number: int
    type: str = "response.function_call_arguments.done"


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The stream ends, and not as it should: what it tells is no part of the response."""

    code: str | None
    message: str
    sequence_number: int
    param: str | None = None
    type: str = "error"


StreamEvent = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | RefusalDeltaEvent
    | RefusalDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
    | ErrorEvent
)
