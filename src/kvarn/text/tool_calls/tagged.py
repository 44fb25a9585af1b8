"""Calls as objects behind a tag: Hermes, Qwen and `kvarn-demo`, Granite and Phi."""

from __future__ import annotations

from typing import ClassVar

from kvarn.text.tool_calls.base import ToolCallParser, Waiting


class HermesParser(ToolCallParser):
    """Reads an object between tags, as often as one comes, anywhere in the text.

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>
    """

    tags: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    end: ClassVar[str] = "</tool_call>"
    reads_lists: ClassVar[bool] = False

    def _calls_at(self, begin: int) -> Waiting[bool]:
        place = yield from self._next(begin)
        if place is None:
            return False
        if self.reads_lists and self._held[place] == "[":
            called = yield from self._json_list(place)
        else:
            called = yield from self._json_call(place)
        if called and not self.satisfied:
            yield from self._skip(self.end)
        return called


class GraniteParser(HermesParser):
    """Reads calls of Granite 3 and 4.

    <|tool_call|>[{"name": "add", "arguments": {"a": 1, "b": 2}}]
    <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
    """

    tags = ("<|tool_call|>", "<tool_call>")
    reads_lists = True


class PhiParser(HermesParser):
    """Reads calls of Phi 4.

    <|tool_call|>[{"name": "add", "arguments": {"a": 1, "b": 2}}]<|/tool_call|>
    functools[{"name": "add", "arguments": {"a": 1, "b": 2}}]
    """

    tags = ("<|tool_call|>", "functools")
    end = "<|/tool_call|>"
    reads_lists = True
