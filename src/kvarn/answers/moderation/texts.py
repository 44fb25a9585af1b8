"""The texts of a chat that moderation reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvarn.text.messages import normalize_messages


def chat_texts(messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]] | None) -> Iterable[str]:
    """All that a chat tells the model: messages, tool calls and their results, and what the tools say of themselves."""
    for message in normalize_messages(messages):  # as the template shows them: no word hidden by JSON's escapes
        content = message.get("content")
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content or ())
        yield message.get("reasoning_content") or ""
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"]
            yield from _strings(call["function"]["arguments"])
    for tool in tools or ():
        yield from _strings(tool["function"])


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
