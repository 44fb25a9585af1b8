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


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


def response_usage(usage: Usage) -> ResponseUsage:
    """Usage in the words of this endpoint."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details={"cached_tokens": usage.prompt_tokens_details.cached_tokens, "cache_write_tokens": 0},
        output_tokens=usage.completion_tokens,
        output_tokens_details={"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        total_tokens=usage.total_tokens,
    )


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
    incomplete_details: dict[str, str] | None = None
    output: list[StoredItem] = msgspec.field(default_factory=list)
    usage: ResponseUsage | UnsetType = UNSET  # once it has ended
    store: bool = True  # whether it is (or will be) kept
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
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | UnsetType = UNSET
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    warnings: list[str] | UnsetType = UNSET  # what may be wrong with the calls it makes


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in short: the user's messages, then a summary of the rest."""

    id: str
    created_at: int
    output: list[StoredItem]
    usage: ResponseUsage
    object: str = "response.compaction"


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tokens that a response's prompt would have."""

    input_tokens: int
    object: str = "response.input_tokens"


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream: `type` says what has happened, and so which fields there are."""

    type: str  # such as `response.created` or `response.output_text.delta`
    sequence_number: int
    response: Response | UnsetType = UNSET
    item: StoredItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: dict[str, Any] | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[TokenLogprobs | msgspec.Raw] | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    annotation: dict[str, Any] | UnsetType = UNSET
    annotation_index: int | UnsetType = UNSET
    code: str | UnsetType | None = UNSET  # of an error; or the code that an interpreter runs
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
