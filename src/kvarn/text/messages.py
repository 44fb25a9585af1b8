"""OpenAI's messages in the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvarn.text.errors import ChatTemplateError


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages, in the older and plainer form that templates know: text parts are joined by newlines,
    no content is "", `developer` is `system`, arguments of tool calls are objects. Raises ChatTemplateError for a
    part that is not text."""
    return [_normalize(message) for message in messages]


def _normalize(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _text(message.get("content"))
    if plain.get("role") == "developer":
        plain["role"] = "system"
    calls = plain.pop("tool_calls", None)
    if calls:  # templates ask whether the key is there, not whether the list is empty
        plain["tool_calls"] = [_normalize_call(call) for call in calls]
    return plain


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if any(part.get("type") != "text" for part in content):
        raise ChatTemplateError("Only content parts of type 'text' can be shown to this model.")
    return "\n".join(part["text"] for part in content)


def _normalize_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = _arguments(function.get("arguments"))
    return {**call, "function": function}


def _arguments(arguments: Any) -> Any:
    """The object in JSON text; text that is none (the model once wrote it so) stays text."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
