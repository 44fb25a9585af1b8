"""The tools of a request: functions with their schemas, tools of the client that go by a type, tools of a server."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from kvarn.wire.anthropic.blocks import CacheControl
from kvarn.wire.anthropic.typed_tools import TYPED_TOOLS, TypedTool
from kvarn.wire.openai.common import EMPTY_IS_NULL, RequestModel, disagreement, only, refused

_VERSION = re.compile(r"_\d{8}$")
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


class ToolDefinition(RequestModel):
    """A function the model may call; `input_schema` is a JSON schema."""

    name: ToolName
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # taken as a hint: inputs are always streamed while they are written
    strict: bool | None = None
    defer_loading: bool | None = None  # taken as a hint: every tool is offered at once
    allowed_callers: Annotated[list[str] | None, only(["direct"])] = None
    input_examples: Annotated[None, refused("describe them in words")] = None


class ClientTool(RequestModel):
    """A tool that the client runs, of a type whose inputs Anthropic documents."""

    model_config = ConfigDict(extra="ignore")  # how much of a file is shown, and such: the client's own affairs

    type: str
    name: ToolName
    strict: bool | None = None

    @property
    def definition(self) -> TypedTool:
        return TYPED_TOOLS[_family(self.type)]


class ServerTool(RequestModel):
    """A tool that Anthropic's servers run, and no other: it is not offered to the model."""

    model_config = ConfigDict(extra="ignore")

    type: str
    name: str | None = None


def _family(kind: str) -> str:
    """A type without its version."""
    return _VERSION.sub("", kind)


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if kind in (None, "", "custom"):
        return "custom"
    return "client" if isinstance(kind, str) and _family(kind) in TYPED_TOOLS else "server"


Tool = Annotated[
    Annotated[ToolDefinition, Tag("custom")]
    | Annotated[ClientTool, Tag("client")]
    | Annotated[ServerTool, Tag("server")],
    Discriminator(_kind),
]
Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=128)]


class ToolChoice(RequestModel):
    """Whether the model decides (`auto`), must use some tool (`any`), must use this one (`tool`), or none."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str | None, EMPTY_IS_NULL] = None  # of type `tool`
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise disagreement("'tool_choice.name' belongs to the type 'tool', and to no other.", "tool_choice.name")
        return self
