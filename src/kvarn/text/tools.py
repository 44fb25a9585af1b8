"""Tool calls in the text a model writes."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call number `index` begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    delta: str


ToolEvent = TextDelta | ToolCallStart | ToolCallArguments


class ToolCallParser(Protocol):
    """Splits a stream of text into text and tool calls."""

    def push(self, text: str) -> list[ToolEvent]:
        """Add text; returns what is now certain."""
        ...

    def flush(self) -> list[ToolEvent]:
        """What was held back, when no more text will come."""
        ...


def new_call_id() -> str:
    """A call's id as OpenAI writes it."""
    return f"call_{secrets.token_hex(12)}"


_OPENING = re.compile(r"\s*<tool_call>")
_OUTSIDE = re.compile(r'"|</tool_call>')
_IN_STRING = re.compile(r'"|\\.', re.DOTALL)


class HermesToolCallParser:
    """Calls as Hermes and Qwen models write them, and as `kvarn-demo` does.

        <tool_call>
        {"name": "add", "arguments": {"a": 1, "b": 2}}
        </tool_call>

    A call is given out when it is complete, since until then it may turn out not to be one: what only looks like a
    call is text, and nothing is lost. White space around calls is dropped.
    """

    OPEN = "<tool_call>"
    CLOSE = "</tool_call>"

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._held = ""
        """Not yet given out: white space and the beginning of a tag, or from an opening tag on the inside of a call."""
        self._calls = 0
        self._after_call = False
        """Whether only white space has followed the last call."""
        self._scan = _CloseTagScan()

    def push(self, text: str) -> list[ToolEvent]:
        """Add text; returns what is now certain."""
        return self._parse(text, final=False)

    def flush(self) -> list[ToolEvent]:
        """What was held back. A complete call that lacks only its closing tag still counts as one."""
        return self._parse("", final=True)

    def _parse(self, text: str, *, final: bool) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        self._held += text
        while self._step(events, final=final):
            pass
        return _merged(events)

    def _step(self, events: list[ToolEvent], *, final: bool) -> bool:
        """Take one text or one call off what is held; False when that cannot be decided yet."""
        opening = _OPENING.match(self._held)
        if opening is None:
            return self._take_text(events, final=final)
        return self._take_call(events, opening.end(), final=final)

    def _take_text(self, events: list[ToolEvent], *, final: bool) -> bool:
        start = self._held.find(self.OPEN)
        if start < 0:
            keep = 0 if final else _open_tail(self._held, self.OPEN)
            self._give_text(events, self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
            return False
        end = len(self._held[:start].rstrip())
        self._give_text(events, self._held[:end])
        self._held = self._held[end:]
        return True

    def _take_call(self, events: list[ToolEvent], begin: int, *, final: bool) -> bool:
        end = self._scan.find(self._held, begin)
        if end is None and not final:
            return False
        if end is None:  # no closing tag outside a string: the first inside one, or the end of the text
            first = self._held.find(self.CLOSE, begin)
            end = len(self._held) if first < 0 else first
        call = _parse_call(self._held[begin:end])
        end = min(end + len(self.CLOSE), len(self._held))
        self._scan = _CloseTagScan()
        if call is None:
            self._give_text(events, self._held[:begin])
            self._held = self._held[begin:]
            return bool(self._held)
        self._held = self._held[end:]
        events.append(ToolCallStart(self._calls, self._new_id(), call[0]))
        events.append(ToolCallArguments(self._calls, call[1]))
        self._calls += 1
        self._after_call = True
        return bool(self._held)

    def _give_text(self, events: list[ToolEvent], text: str) -> None:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            events.append(TextDelta(text))


class _CloseTagScan:
    """Finds a closing tag outside JSON strings, reading each character once however the text comes."""

    def __init__(self) -> None:
        self._position = 0
        self._in_string = False

    def find(self, text: str, begin: int) -> int | None:
        """Where the tag stands in `text`, which begins as in the call before; None if it has not come yet."""
        position = max(self._position, begin)
        while found := (_IN_STRING if self._in_string else _OUTSIDE).search(text, position):
            if found[0] == HermesToolCallParser.CLOSE:
                return found.start()
            self._in_string ^= found[0] == '"'
            position = found.end()
        # The tail may be the beginning of a tag or of an escape: it is read again. It holds no quote.
        self._position = max(position, len(text) - len(HermesToolCallParser.CLOSE) + 1)
        return None


TOOL_CALL_PARSERS: Mapping[str, Callable[[], ToolCallParser]] = {"hermes": HermesToolCallParser}
"""The formats that can be parsed, by name."""


def make_tool_call_parser(format_name: str = "hermes") -> ToolCallParser:
    """A parser for one choice of one answer.

    Raises:
        ValueError: No such format; the message names those there are.
    """
    if format_name not in TOOL_CALL_PARSERS:
        raise ValueError(f"no tool call format {format_name!r}: choose from {', '.join(TOOL_CALL_PARSERS)}")
    return TOOL_CALL_PARSERS[format_name]()


def _open_tail(text: str, tag: str) -> int:
    """Length of the tail that may belong to a call yet: white space, and a beginning of the tag."""
    start = text.rfind(tag[0], max(0, len(text) - len(tag) + 1))
    if start < 0 or not tag.startswith(text[start:]):
        start = len(text)
    return len(text) - len(text[:start].rstrip())


def _parse_call(body: str) -> tuple[str, str] | None:
    """Name and arguments (JSON text) of a call; None where it is not one."""
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
        arguments: Any = call.get("arguments", {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):  # some models quote them once more
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _merged(events: list[ToolEvent]) -> list[ToolEvent]:
    merged: list[ToolEvent] = []
    for event in events:
        if isinstance(event, TextDelta) and merged and isinstance(merged[-1], TextDelta):
            merged[-1] = TextDelta(merged[-1].text + event.text)
        else:
            merged.append(event)
    return merged
