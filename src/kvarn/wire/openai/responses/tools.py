"""The tools of a response: functions, tools whose input is plain text, namespaces of both, and tools of a server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from kvarn.wire.openai.chat.request import HostedChoice
from kvarn.wire.openai.chat.response_format import FunctionName
from kvarn.wire.openai.common import EMPTY_IS_NULL, RequestModel, disagreement, is_empty, only, validation_error
from kvarn.wire.openai.hosted import HostedTool

OFFERED_TYPES = ("function", "custom", "namespace")  # types of the tools that the model is offered
_CALLED_DIRECTLY = only(["direct"])


class FunctionTool(RequestModel):
    """A function the model may call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None  # of what the client gives back: taken as a hint
    defer_loading: bool | None = None  # taken as a hint: every tool is offered at once
    allowed_callers: Annotated[list[str] | None, _CALLED_DIRECTLY] = None


class InputFormat(RequestModel):
    """Any text, or text that matches a grammar."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None

    @model_validator(mode="after")
    def _has_its_grammar(self) -> InputFormat:
        if (self.type == "grammar") != (self.syntax is not None and self.definition is not None):
            why = "'format' of type 'grammar' needs 'syntax' and 'definition'; other types have neither."
            raise disagreement(why, "tools.format")
        return self


class CustomTool(RequestModel):
    """A tool whose input is plain text."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: Annotated[InputFormat | None, EMPTY_IS_NULL] = None
    defer_loading: bool | None = None
    allowed_callers: Annotated[list[str] | None, _CALLED_DIRECTLY] = None


class NamespaceTool(RequestModel):
    """Tools that belong together, such as those of one MCP server."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: Annotated[
        list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]], Field(fail_fast=True, max_length=128)
    ]


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in OFFERED_TYPES else "hosted"


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind),
]


class ToolReference(RequestModel):
    """The one tool that shall be called."""

    type: Literal["function", "custom"]
    name: str


class AllowedTool(HostedChoice):
    """A tool that the model may use this time; those that are not offered are passed over."""


class AllowedTools(RequestModel):
    """Restriction of this one answer to some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(fail_fast=True, min_length=1, max_length=128)]


_CHOICES = ("none", "auto", "required")


def _check_choice(value: Any) -> Any:
    """Let through the named values and objects with a type; what is empty is null."""
    if is_empty(value):
        return None
    if value in _CHOICES if isinstance(value, str) else isinstance(value, dict) and isinstance(value.get("type"), str):
        return value
    why = (
        "'tool_choice' may be 'none', 'auto', 'required', or an object with the type of a tool, such as 'function', "
        "'custom', 'allowed_tools' or 'file_search'."
    )
    raise validation_error("unsupported_value", why)


def _kind_of_choice(choice: Any) -> str:
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    if kind in ("function", "custom"):
        return "reference"
    return "allowed" if kind == "allowed_tools" else "hosted"


ToolChoice = Annotated[
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[ToolReference, Tag("reference")]
        | Annotated[AllowedTools, Tag("allowed")]
        | Annotated[HostedChoice, Tag("hosted")],
        Discriminator(_kind_of_choice),
    ]
    | None,
    BeforeValidator(_check_choice),
]
