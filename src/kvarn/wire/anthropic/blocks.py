"""The content of the messages that a request of `/v1/messages` holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kvarn.wire.openai.common import RequestModel, only, refused


class CacheControl(RequestModel):
    """A hint: every prompt is cached anyway, as far as there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(RequestModel):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[None, refused("'citations' are not supported.")] = None


class ToolUseBlock(RequestModel):
    """A call the model made in an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Annotated[dict[str, Any] | None, only({"type": "direct"}, why="'caller' may only be direct.")] = None
    toolset_name: Annotated[None, refused("'toolset_name' is not supported.")] = None


class ToolResultBlock(RequestModel):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: Annotated[None, refused("'toolset_name' is not supported.")] = None

    @property
    def text(self) -> str:
        """What the model is shown."""
        text = text_of(self.content or "")
        return f"Error: {text}" if self.is_error else text


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True, min_length=1)]
UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ToolUseBlock, Field(discriminator="type")]


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
