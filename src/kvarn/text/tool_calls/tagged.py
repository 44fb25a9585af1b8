"""Calls as Granite and Phi write them: a tag and a list of objects."""

from __future__ import annotations

from typing import ClassVar

from kvarn.text.tool_calls.base import ToolCallParser, Waiting


class TaggedListParser(ToolCallParser):
    """Reads a list of calls, or a single one, after a tag."""

    tags: ClassVar[tuple[str, ...]]
    """Any of them begins calls."""
    end: ClassVar[str]
    """Tag that may end them."""

    def _parse(self) -> Waiting[None]:
        while tag := (yield from self._text_up_to(*self.tags)):
            begin = self._held.index(tag) + len(tag)
            place = yield from self._next(begin)
            mark = "" if place is None else self._held[place]
            if place is not None and mark == "[":
                called = yield from self._json_list(place)
            else:
                called = place is not None and mark == "{" and (yield from self._json_call(place))
            if self.satisfied:
                return
            if called:
                yield from self._skip(self.end)
            else:
                self._give(self._held[:begin])
                self._drop(begin)


class GraniteParser(TaggedListParser):
    """Granite 3 and 4.

    <|tool_call|>[{"name": "add", "arguments": {"a": 1, "b": 2}}]
    <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
    """

    tags = ("<|tool_call|>", "<tool_call>")
    end = "</tool_call>"


class PhiParser(TaggedListParser):
    """Phi 4.

    <|tool_call|>[{"name": "add", "arguments": {"a": 1, "b": 2}}]<|/tool_call|>
    functools[{"name": "add", "arguments": {"a": 1, "b": 2}}]
    """

    tags = ("<|tool_call|>", "functools")
    end = "<|/tool_call|>"


def tagged_opening(name: str | None) -> str:
    """Text that begins a list after a special token; see `hermes_opening`."""
    return f"<|tool_call|>{_list_opening(name)}"


def functools_opening(name: str | None) -> str:
    """Text that begins a list after a word; see `hermes_opening`."""
    return f"functools{_list_opening(name)}"


def _list_opening(name: str | None) -> str:
    return '[{"name":' if name is None else f'[{{"name": "{name}", "arguments":'
