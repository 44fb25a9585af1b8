"""The answers of `/v1/chat/completions`: one object, or the chunks of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvarn.wire.openai.usage import PromptLogprobs, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the most likely tokens at a position; `bytes` are the token's own, which may cut a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(TopLogprob, frozen=True, kw_only=True):
    """The drawn token at a position and the most likely ones there."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of a choice, or of one chunk of it; there may be tens of megabytes, so they come encoded."""

    content: list[TokenLogprobs | msgspec.Raw] | None
    refusal: list[TokenLogprobs | msgspec.Raw] | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionCall
    type: str = "function"


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None
    role: str = "assistant"
    reasoning: str | UnsetType = UNSET  # reasoning before the answer (vLLM's extension)
    reasoning_content: str | UnsetType = UNSET  # the same by the name that vLLM gave it at first, as DeepSeek does
    refusal: str | None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET  # where the request spoke of functions
    annotations: list[dict[str, Any]] | UnsetType = UNSET  # citations of what tools have read
    tool_executions: list[dict[str, Any]] | UnsetType = UNSET
    """Calls of tools that the server has run, as items of `/v1/responses` (an extension)."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    finish_reason: FinishReason
    logprobs: ChoiceLogprobs | None = None
    stop_reason: int | str | None = None
    """The stop token id or string that ended it; None for the model's own end token (vLLM's extension)."""
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    object: str = "chat.completion"
    service_tier: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    """Deviations from the request: arguments that are no JSON object, an answer that could not be stored (an
    extension)."""


class FunctionCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a call: its name once, its arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of tool call `index`; `id` and `type` stand in its first piece."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionCallDelta | UnsetType = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET
    tool_executions: list[dict[str, Any]] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChoiceLogprobs | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. Where usage was asked for it is null in all but the last, which has no choices."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    object: str = "chat.completion.chunk"
    service_tier: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
