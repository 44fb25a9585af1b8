"""Tools that a chat request offers, and what it says of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from kvarn.wire.openai.common import RequestModel, ignored, only

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


Strict = Annotated[bool | None, ignored("ignored 'strict', arguments are not constrained to the schema yet", False)]
"""Of a function: its arguments shall keep to its schema."""


class FunctionDefinition(RequestModel):
    """A function the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Strict = None

    @property
    def shown(self) -> dict[str, Any]:
        """What the model is shown of it."""
        return self.model_dump(exclude_none=True, exclude={"strict"})

    @property
    def required(self) -> tuple[str, ...]:
        """The properties that its schema says arguments must have."""
        named = (self.parameters or {}).get("required")
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


class Tool(RequestModel):
    """A tool the model may use."""

    type: Annotated[Literal["function"], only("function", why="Only tools of type 'function' are supported.")]
    function: FunctionDefinition


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=128)]


class FunctionReference(RequestModel):
    """A function by its name."""

    name: str


class NamedToolChoice(RequestModel):
    """The model must call this function."""

    type: Literal["function"]
    function: FunctionReference


class AllowedTools(RequestModel):
    """Which of the tools may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[Tool], Field(fail_fast=True, min_length=1, max_length=128)]


class AllowedToolsChoice(RequestModel):
    """The model may, or must, call one of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _check_tool_choice(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else value
    known = ("function", "allowed_tools") if isinstance(value, dict) else ("none", "auto", "required", None)
    if kind not in known:
        why = (
            "'tool_choice' must be 'none', 'auto', 'required', or an object of type 'function' or 'allowed_tools'; "
            "custom tools are not supported."
        )
        raise PydanticCustomError("unsupported_value", "{why}", {"why": why})
    return value


ToolChoice = Annotated[
    Literal["none", "auto", "required"]
    | Annotated[NamedToolChoice | AllowedToolsChoice, Field(discriminator="type")]
    | None,
    BeforeValidator(_check_tool_choice),
]
FunctionCallChoice = Literal["none", "auto"] | FunctionReference


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of calls."""

    functions: tuple[FunctionDefinition, ...]
    """What the model is shown and may call."""
    forced: bool = False
    """It must call one."""
    named: str | None = None
    """It must call this one."""
    parallel: bool = True
    """It may call several at once."""
    legacy: bool = False
    """The client speaks of functions, not of tools."""

    @property
    def names(self) -> frozenset[str]:
        """What may be called."""
        return frozenset(function.name for function in self.functions)

    @property
    def max_calls(self) -> int | None:
        """Calls in one answer at most; None: any number."""
        return 1 if self.named is not None or not self.parallel else None

    @property
    def certain_name(self) -> str | None:
        """What will be called, where the request leaves no choice."""
        return self.named or (self.functions[0].name if len(self.functions) == 1 else None)
