"""Calls as gpt-oss writes them: messages to a tool."""

from __future__ import annotations

import re

from kvarn.text.reasoning.harmony import CALL, CHANNEL, END, LONGEST_HEADER, MESSAGE, START
from kvarn.text.tool_calls.base import ToolCallParser, Waiting

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")


class HarmonyParser(ToolCallParser):
    """Reads messages with a recipient, which stands before or after the channel. The first message's header goes on
    from a prompt that ends with `<|start|>assistant`. Reasoning is told apart before: see `HarmonySplitter`.

    <|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1, "b": 2}<|call|>
    <|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1, "b": 2}<|call|>
    """

    def _parse(self) -> Waiting[None]:
        at_start = (yield from self._comes("to=")) is not None
        while at_start or (yield from self._text_up_to(START, CHANNEL)):
            at_start = False
            if not (yield from self._calls_at(0)):
                self._give(self._held[:1])
                self._drop(1)
            elif self.satisfied:
                return

    def _calls_at(self, begin: int) -> Waiting[bool]:
        head = yield from self._head()
        if head is None:
            return False
        yield from self._call(*head)
        if not self.satisfied:
            yield from self._skip(CALL)
            yield from self._skip(END)
        return True

    def _head(self) -> Waiting[tuple[str, int] | None]:
        """The name that the header calls, and where its arguments begin; None where it is no call."""
        while True:
            lead = len(self._held) - len(self._held.lstrip())
            window = self._held[: lead + LONGEST_HEADER]
            end = window.find(MESSAGE)
            if end >= 0:
                found = _RECIPIENT.search(window[:end])
                if found is None or (self._names is not None and found[1] not in self._names):
                    return None
                place = yield from self._next(end + len(MESSAGE))
                return (found[1], place) if place is not None and self._held[place] == "{" else None
            if self._final or len(window) >= lead + LONGEST_HEADER:
                return None
            yield
