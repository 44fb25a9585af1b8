"""The requests of `/v1/messages` and `/v1/messages/count_tokens`.

Every field of Anthropic's `MessageCreateParams` is honoured, taken as a hint, or refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvarn.wire.anthropic.blocks import (
    AssistantMessage,
    CacheControl,
    Messages,
    TextBlocks,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from kvarn.wire.openai.chat.tools import Strict
from kvarn.wire.openai.common import SAMPLING_FIELDS, LenientModel, RequestModel, Strings, disagreement, only, refused


class ToolDefinition(RequestModel):
    """A function the model may call; `input_schema` is a JSON schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")
    input_schema: dict[str, Any]
    type: Annotated[Literal["custom"] | None, only("custom", why="Only tools of type 'custom' are supported.")] = None
    description: str | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    """Taken as a hint: inputs are always streamed while they are written."""
    strict: Strict = None
    defer_loading: Annotated[bool | None, only(False, why="'defer_loading' is not supported.")] = None
    allowed_callers: Annotated[list[str] | None, only(["direct"], why="'allowed_callers' may only be ['direct'].")] = (
        None
    )
    input_examples: Annotated[None, refused("'input_examples' are not supported: describe them in words.")] = None


class AutoChoice(RequestModel):
    """The model decides."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(RequestModel):
    """The model must use some tool."""

    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ToolChoice(RequestModel):
    """The model must use this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(RequestModel):
    """The model must not use tools."""

    type: Literal["none"]


Choice = Annotated[AutoChoice | AnyChoice | ToolChoice | NoChoice, Field(discriminator="type")]


class Thinking(RequestModel):
    """Only `disabled`: the models served do not think apart from what they write."""

    type: Annotated[Literal["disabled"], only("disabled", why="'thinking' may only be disabled.")]


class MessagesPrompt(LenientModel):
    """What becomes the prompt: all there is to count."""

    unsupported_fields = SAMPLING_FIELDS | {
        *("compaction", "context_management", "fallbacks", "mcp_servers", "output_format", "thread"),
    }

    model: str
    messages: Messages
    system: str | TextBlocks | None = None
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: Choice | None = None
    cache_control: CacheControl | None = None
    thinking: Thinking | None = None
    output_config: Annotated[None, refused("'output_config' is not supported yet.")] = None
    speed: Annotated[str | None, only("standard", why="'speed' may only be 'standard'.")] = None

    @model_validator(mode="after")
    def _results_belong_to_calls(self) -> MessagesPrompt:
        calls: set[str] = set()
        for number, message in enumerate(self.messages):
            if isinstance(message.content, str):
                continue
            for index, block in enumerate(message.content):
                if isinstance(block, ToolUseBlock):
                    calls.add(block.id)
                elif isinstance(block, ToolResultBlock) and block.tool_use_id not in calls:
                    where = f"messages[{number}].content[{index}].tool_use_id"
                    shown = block.tool_use_id[:80]
                    raise disagreement(f"{where} is {shown!r}: no message before it has a tool_use of that id.", where)
        last = self.messages[-1]
        if isinstance(last, AssistantMessage) and any(isinstance(block, ToolUseBlock) for block in last.content):
            where = f"messages[{len(self.messages) - 1}]"
            raise disagreement(f"{where} ends with a tool_use: give its tool_result in a message after it.", where)
        if not isinstance(last, UserMessage | AssistantMessage):
            raise disagreement("The last of 'messages' must be the user's or the assistant's.", "messages")
        return self


class Metadata(RequestModel):
    """What a client says of its request."""

    user_id: str | None = Field(None, max_length=256)


class MessagesRequest(MessagesPrompt):
    """The body of a request to `/v1/messages`."""

    max_tokens: int = Field(ge=1)
    metadata: Metadata | None = None
    stop_sequences: Strings | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: Annotated[None, refused("'container' is not supported.")] = None
    diagnostics: Annotated[None, refused("'diagnostics' is not supported.")] = None
    inference_geo: Annotated[None, refused("'inference_geo' is not supported.")] = None


class CountTokensRequest(MessagesPrompt):
    """The body of a request to `/v1/messages/count_tokens`."""
