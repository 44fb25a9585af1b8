"""Ends of calls of servers' tools: texts that fit, and failures that the model may act on."""

from __future__ import annotations

import json
from typing import Any

from kvarn.tools.server import ToolCallError
from kvarn.tools.types import ToolCall, ToolResult


def completed(text: str, max_bytes: int, name: str) -> ToolResult:
    shown, note = cut(text, max_bytes, name)
    return ToolResult(shown, item={"output": shown}, metadata=(note,) if note else ())


def failed(error: ToolCallError, max_bytes: int) -> ToolResult:
    """The model gets the failure's sentence as the call's output: it may try otherwise."""
    shown, _ = cut(f"The call failed: {error}", max_bytes, "")
    return ToolResult(shown, status="failed", error=error.error, item={"output": None})


def cut(text: str, max_bytes: int, name: str) -> tuple[str, str]:
    """A text of at most so many bytes, and a sentence where something was left out."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode(), ""
    note = f"the result of {name} was cut to {max_bytes} of {len(encoded)} bytes"
    return encoded[:max_bytes].decode("utf-8", "ignore"), note


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments that the model wrote. Raises `ToolCallError` where they are no object."""
    try:
        parsed = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        message = "the arguments are no JSON object"
        raise ToolCallError({"type": "mcp_tool_execution_error", "content": message}, message)
    return parsed
