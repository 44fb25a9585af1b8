"""Events of a parser of tool calls."""

from __future__ import annotations

import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    index: int
    delta: str


ToolEvent = TextDelta | ToolCallStart | ToolCallArguments


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def merged(events: list[ToolEvent]) -> list[ToolEvent]:
    """The same events with neighbours of one kind joined."""
    joined: list[ToolEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(last.index, last.delta + event.delta)
        else:
            joined.append(event)
    return joined
