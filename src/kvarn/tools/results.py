"""Ends of calls of servers' tools: texts that fit, and failures that the model may act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.answers.chat.tool_calls import INVALID, arguments_object
from kvarn.tools.execution import cut
from kvarn.tools.server import ToolCallError, ToolServer, tool_error, without_secrets
from kvarn.tools.types import ToolCall, ToolResult


def completed(text: str, max_bytes: int, name: str) -> ToolResult:
    shown, is_cut = cut(text, max_bytes)
    if not is_cut:
        return ToolResult(shown, item={"output": shown})
    shown += "\n[The rest was cut off: it is longer than a result may be.]"
    warning = f"The result of {name} was cut: it is longer than {max_bytes} bytes."
    return ToolResult(shown, item={"output": shown}, metadata=(warning,))


def failed(error: ToolCallError, server: ToolServer, max_bytes: int) -> ToolResult:
    """The model gets the failure's sentence as the call's output: it may try otherwise."""

    def told(value: Any) -> Any:
        if isinstance(value, str):
            return cut(without_secrets(value, server), max_bytes)[0]
        if isinstance(value, Mapping):
            return {key: told(each) for key, each in value.items()}
        return [told(each) for each in value] if isinstance(value, list) else value

    shown = told(f"The call failed: {error}")
    return ToolResult(shown, status="failed", error=told(error.error), item={"output": None})


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments that the model wrote. Raises `ToolCallError` where they are no object."""
    arguments = arguments_object(call.arguments)
    if INVALID in arguments:
        raise tool_error("the arguments are no JSON object")
    return arguments
