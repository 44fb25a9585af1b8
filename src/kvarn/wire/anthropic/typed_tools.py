"""Tools of clients that Anthropic's models know by a type: a request names the type only, its inputs are documented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
