"""The tools of a request: functions with their schemas, tools of the client that go by a type, tools of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from kvarn.wire.anthropic.blocks import CacheControl
from kvarn.wire.openai.common import EMPTY_IS_NULL, RequestModel, disagreement, only, refused


@dataclass(frozen=True, slots=True)
class TypedTool:
    """Description and schema of such a tool, as a model is shown it."""

    description: str
    input_schema: Mapping[str, Any]


_TEXT = {"type": "string"}
_LINE = {"type": "integer"}
_RANGE = {"type": "array", "items": _LINE, "description": "For `view`: first and last line; -1 is the file's last."}


def _commands(names: list[str], **properties: Any) -> dict[str, Any]:
    properties = {"command": {"type": "string", "enum": names}, **properties}
    return {"type": "object", "properties": properties, "required": ["command"], "additionalProperties": False}


_EDITS: dict[str, Any] = {
    "path": _TEXT | {"description": "Absolute path of the file or directory."},
    "view_range": _RANGE,
    "file_text": _TEXT | {"description": "For `create`: what the file shall hold."},
    "old_str": _TEXT | {"description": "For `str_replace`: the text to replace; it must occur exactly once."},
    "new_str": _TEXT | {"description": "For `str_replace`: what stands in its place."},
    "insert_line": _LINE | {"description": "For `insert`: the line after which the text goes; 0 is the beginning."},
    "insert_text": _TEXT | {"description": "For `insert`: the text."},
}

TYPED_TOOLS: Mapping[str, TypedTool] = {
    "bash": TypedTool(
        "Run a command in a bash shell that keeps its state from call to call.",
        {
            "type": "object",
            "properties": {
                "command": _TEXT | {"description": "The command to run."},
                "restart": {"type": "boolean", "description": "Start the shell anew in place of running a command."},
            },
            "additionalProperties": False,
        },
    ),
    "text_editor": TypedTool(
        "View, create and edit text files.", _commands(["view", "create", "str_replace", "insert"], **_EDITS)
    ),
    "memory": TypedTool(
        "Files under /memories that last from one conversation to the next: look at them before you begin, and keep "
        "there what shall be remembered.",
        _commands(
            ["view", "create", "str_replace", "insert", "delete", "rename"],
            **_EDITS,
            old_path=_TEXT | {"description": "For `rename`: the path as it is."},
            new_path=_TEXT | {"description": "For `rename`: the path as it shall be."},
        ),
    ),
}
"""By type, without the version."""


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
    """A tool that the server runs, where it has one of the kind (`kvarn.tools.messages`)."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = None

    @property
    def family(self) -> str:
        return _family(self.type)

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def may_run(self) -> bool:
        """Whether there is a tool of this kind that this server may have."""
        return self.family in ("web_search", "code_execution") or self.type == "mcp_toolset"


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
