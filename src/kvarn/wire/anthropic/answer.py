"""The answers of `/v1/messages`: one message, or the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request. `input_tokens` are those that were computed: what came from the cache is counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    service_tier: str = "standard"


class AnswerText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class AnswerToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call the model makes."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = AnswerText | AnswerToolUse


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says."""

    id: str
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    type: str = "message"
    role: str = "assistant"
    warnings: list[str] | UnsetType = UNSET
    """What is not as it was asked for (an extension)."""


class MessageStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first event: a message without content."""

    message: Message
    type: str = "message_start"


class BlockStart(msgspec.Struct, frozen=True, kw_only=True):
    """Block number `index` begins."""

    index: int
    content_block: AnswerBlock
    type: str = "content_block_start"


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More text."""

    text: str
    type: str = "text_delta"


class InputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of the JSON text of a call's input."""

    partial_json: str
    type: str = "input_json_delta"


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a block."""

    index: int
    delta: TextDelta | InputDelta
    type: str = "content_block_delta"


class BlockStop(msgspec.Struct, frozen=True, kw_only=True):
    """A block is complete."""

    index: int
    type: str = "content_block_stop"


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Why the message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The message is complete."""

    delta: Stop
    usage: Usage
    type: str = "message_delta"
    warnings: list[str] | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, kw_only=True):
    """The last event."""

    type: str = "message_stop"


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing, to show that the connection lives."""

    type: str = "ping"


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt."""

    input_tokens: int
