"""The blocks that messages are made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, model_validator

from kvarn.wire.anthropic.hosted import HostedToolResult, HostedToolUse
from kvarn.wire.openai.common import Refused, RequestModel, only, warn_ignored


class CacheControl(RequestModel):
    """A hint: every prompt is cached anyway, as far as there is room."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["ephemeral"] | None = None
    ttl: str | None = None


class Cached(RequestModel):
    """Base of what may carry the hint."""

    cache_control: CacheControl | None = None


class TextBlock(Cached):
    """Text. Citations are sent back by clients that echo an answer; they are not shown to the model."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = None


class ToolUseBlock(Cached):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[dict[str, Any] | None, only({"type": "direct"})] = None
    toolset_name: Refused = None


class ToolReferenceBlock(Cached):
    """A tool that a search of the client's has found. All tools are offered from the beginning."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        return f"Tool found: {self.tool_name}"


class ImageBlock(Cached):
    """A picture or a document that a tool has read: the model is told that it was there. A client sends it again with
    each later request, so that to refuse it would end its session."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["image", "document"]

    @model_validator(mode="after")
    def _warn(self, info: ValidationInfo) -> ImageBlock:
        warn_ignored(info, f"ignored 'tool_result.content.{self.type}', models read text only")
        return self

    @property
    def text(self) -> str:
        return f"[{self.type}: this model reads text only]"


ResultBlock = Annotated[TextBlock | ToolReferenceBlock | ImageBlock, Field(discriminator="type")]


class ToolResultBlock(Cached):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[ResultBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    toolset_name: Refused = None

    @property
    def text(self) -> str:
        text = text_of(self.content or "")
        return f"Error: {text}" if self.is_error else text


class ThinkingBlock(Cached):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None  # not checked


class RedactedThinkingBlock(Cached):
    """Reasoning of another server's model, sealed: it is left out."""

    type: Literal["redacted_thinking"]
    data: str


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True)]
UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock | HostedToolUse | HostedToolResult,
    Field(discriminator="type"),
]


def text_of(content: str | list[TextBlock] | list[ResultBlock]) -> str:
    """Blocks as one text."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
