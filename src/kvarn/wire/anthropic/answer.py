"""The answers of `/v1/messages`: one message, or the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvarn.wire.anthropic.hosted import HostedAnswerBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request. `input_tokens` are those that were computed: what came from the cache is counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    service_tier: str = "standard"
    server_tool_use: dict[str, int] | UnsetType = UNSET  # calls of the server's tools that are counted


class AnswerText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class AnswerToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class AnswerThinking(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str  # a checksum: clients expect one and send it back, and this server does not check it


class AppliedEdit(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and blocks that an edit of `context_management` has left out of the prompt."""

    type: str
    cleared_input_tokens: int
    cleared_tool_uses: int | UnsetType = UNSET
    cleared_thinking_turns: int | UnsetType = UNSET


AnswerBlock = AnswerText | AnswerToolUse | AnswerThinking | HostedAnswerBlock


class Message(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    type: str = "message"
    role: str = "assistant"
    context_management: dict[str, list[AppliedEdit]] | UnsetType = UNSET  # `applied_edits`
    warnings: list[str] | UnsetType = UNSET  # what is not as it was asked for (an extension)


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a block (`text_delta`, `input_json_delta`, `thinking_delta`, `signature_delta`), or why the message ends
    (without a type)."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    stop_reason: StopReason | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream: `type` says what has happened, and so which fields there are."""

    type: str  # such as `message_start` or `content_block_delta`
    message: Message | UnsetType = UNSET
    index: int | UnsetType = UNSET  # of the block
    content_block: AnswerBlock | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    context_management: dict[str, list[AppliedEdit]] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    context_management: dict[str, int] | UnsetType = UNSET  # `original_input_tokens`: before its edits
