"""Tools of a server as functions that a model is offered: names that cannot clash, texts that are data, small schemas.

A function is called `label__tool`, so no server's tool has the name of another's, of a built-in one or of a client's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvarn.retrieval.quoting import escape_text
from kvarn.tools.types import ToolDefinition

MAX_TOOLS = 128
"""Tools of one server that are offered; those behind them are left out."""
MAX_SCHEMA_BYTES = 32 * 1024
_MAX_DEPTH = 24
_MAX_DESCRIPTION = 4096
_MAX_NAME = 64
_DIGEST = 8
_SEPARATOR = "__"
_NO_BOUNDARY = "0" * 12
_LEFT_OUT = frozenset({"$id", "$schema", "$comment", "examples", "default"})
"""Keywords that a model is not shown: they change nothing, or where references lead."""
_TEXTS = frozenset({"description", "title"})


@dataclass(frozen=True, slots=True)
class ServerTool:
    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Any] | None = None
    request: str = ""
    """Method and URL of an operation's requests; empty: the server speaks MCP."""

    @property
    def is_read_only(self) -> bool:
        return (self.annotations or {}).get("readOnlyHint") is True

    @property
    def digest(self) -> str:
        """SHA-256 of all that a model or a person decides by. A change of it is another tool."""
        told = [self.name, self.description, self.schema, self.annotations, self.request]
        return hashlib.sha256(json.dumps(told, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    @property
    def chars(self) -> int:
        return len(self.name) + len(self.description) + len(json.dumps([self.schema, self.annotations]))

    def as_listed(self) -> dict[str, Any]:
        """Entry of `tools` of the item `mcp_list_tools`."""
        told = {"name": self.name, "description": self.description or None, "input_schema": dict(self.schema)}
        return told | {"annotations": dict(self.annotations) if self.annotations else None}


def function_name(label: str, tool: str) -> str:
    """The model's name of a tool. One that would be too long, or has other characters than functions may have, ends in
    a digest of what it was."""
    whole = f"{label}{_SEPARATOR}{tool}"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", whole)
    if plain == whole and len(whole) <= _MAX_NAME:
        return whole
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{plain[: _MAX_NAME - _DIGEST - 1]}_{digest}"


def definition_of(label: str, about: str, tool: ServerTool) -> ToolDefinition:
    """The function that the model is told of. Raises `ValueError`: its schema is too large, too deep or none."""
    shown = ": ".join(filter(None, (about, tool.description)))
    return ToolDefinition(function_name(label, tool.name), _plain(shown), clean_schema(tool.schema))


def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of an object without what leads out of it. Raises `ValueError` as `definition_of` does."""
    if len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its schema has more than {MAX_SCHEMA_BYTES} bytes")
    if schema.get("type", "object") != "object":
        raise ValueError("its schema is none of an object")
    cleaned = _clean(schema, _MAX_DEPTH)
    assert isinstance(cleaned, dict)
    return {"type": "object", "properties": {}} | cleaned


def named_once(tools: Sequence[ServerTool]) -> list[ServerTool]:
    """The tools whose names are theirs alone. A server that tells one name twice may mean either, so neither counts."""
    names = [tool.name for tool in tools]
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    return [tool for tool in tools if seen[tool.name] == 1]


def _clean(value: Any, depth: int) -> Any:
    if depth == 0:
        raise ValueError(f"its schema is deeper than {_MAX_DEPTH}")
    if isinstance(value, list):
        return [_clean(each, depth - 1) for each in value]
    if isinstance(value, str):
        return _unmarked(value)
    if not isinstance(value, Mapping):
        return value
    cleaned = {}
    for key, each in value.items():
        if key in _LEFT_OUT and not isinstance(each, Mapping):  # a mapping: a property of this name
            continue
        if key in ("$ref", "$dynamicRef") and isinstance(each, str) and not each.startswith("#"):
            continue  # another document, which nobody fetches
        cleaned[_unmarked(key)] = _plain(each) if key in _TEXTS and isinstance(each, str) else _clean(each, depth - 1)
    return cleaned


def _unmarked(text: str) -> str:
    """A text that cannot be changed: the name of a property, one of its values."""
    if escape_text(text, _NO_BOUNDARY) != text:
        raise ValueError("its schema holds a marker of a prompt, or characters that are not seen")
    return text


def _plain(text: str) -> str:
    return escape_text(text[:_MAX_DESCRIPTION], _NO_BOUNDARY)
