"""The requests of `/v1/messages` and `/v1/messages/count_tokens`.

Every field of Anthropic's `MessageCreateParams` is honoured, taken as a hint, or refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvarn.wire.openai.common import (
    SAMPLING_FIELDS,
    LenientModel,
    Refused,
    RequestModel,
    Strings,
    disagreement,
    ignored,
    only,
    refused,
)


class CacheControl(RequestModel):
    """A hint: every prompt is cached anyway, as far as there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(RequestModel):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Refused = None


class ToolUseBlock(RequestModel):
    """A call the model made in an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Annotated[dict[str, Any] | None, only({"type": "direct"})] = None
    toolset_name: Refused = None


class ToolResultBlock(RequestModel):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: Refused = None

    @property
    def text(self) -> str:
        """What the model is shown."""
        text = text_of(self.content or "")
        return f"Error: {text}" if self.is_error else text


class ThinkingBlock(RequestModel):
    """What the model thought in an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None  # not checked


class RedactedThinkingBlock(RequestModel):
    """What another server's model thought, sealed: it is left out."""

    type: Literal["redacted_thinking"]
    data: str


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True, min_length=1)]
UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock, Field(discriminator="type")
]


class UserMessage(RequestModel):
    """What the user says, and what the tools gave."""

    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(fail_fast=True, min_length=1)]


class AssistantMessage(RequestModel):
    """What the model said in an earlier turn, or, as the last message, how its answer begins."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True, min_length=1)]


class SystemMessage(RequestModel):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: str | TextBlocks


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


def text_of(content: str | list[TextBlock]) -> str:
    """Blocks as one text."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


class ToolDefinition(RequestModel):
    """A function the model may call; `input_schema` is a JSON schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")
    input_schema: dict[str, Any]
    type: Annotated[Literal["custom"] | None, only("custom", why="Only tools of type 'custom' are supported.")] = None
    description: str | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # taken as a hint: inputs are always streamed while they are written
    strict: bool | None = None
    defer_loading: Annotated[bool | None, only(False)] = None
    allowed_callers: Annotated[list[str] | None, only(["direct"])] = None
    input_examples: Annotated[None, refused("describe them in words")] = None


class ToolChoice(RequestModel):
    """Whether the model decides (`auto`), must use some tool (`any`), must use this one (`tool`), or none."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None  # of type `tool`
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise disagreement("'tool_choice.name' belongs to the type 'tool', and to no other.", "tool_choice.name")
        return self


class Thinking(LenientModel):
    """Whether the model shall think before it answers; how much is its own decision."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[
        int | None, ignored("ignored 'thinking.budget_tokens', the model decides how much it thinks")
    ] = None
    display: Literal["summarized", "omitted"] | None = None
    """Whether the thinking is sent: if so, as it is."""


class MessagesPrompt(LenientModel):
    """What becomes the prompt: all there is to count."""

    unsupported_fields = SAMPLING_FIELDS | {
        *("compaction", "context_management", "fallbacks", "mcp_servers", "output_format", "thread"),
    }

    model: str
    messages: Messages
    system: str | TextBlocks | None = None
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    cache_control: CacheControl | None = None
    thinking: Thinking | None = None
    output_config: Refused = None
    speed: Annotated[str | None, only("standard")] = None

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
    container: Refused = None
    diagnostics: Refused = None
    inference_geo: Refused = None


class CountTokensRequest(MessagesPrompt):
    """The body of a request to `/v1/messages/count_tokens`."""
