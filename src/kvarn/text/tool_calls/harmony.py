"""Calls as gpt-oss writes them: messages to a tool."""

from __future__ import annotations

import re

from kvarn.text.reasoning.harmony import CALL, CHANNEL, CONSTRAIN, END, LONGEST_HEADER, MESSAGE, START
from kvarn.text.tool_calls.base import ToolCallParser, Waiting

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_TO = "to="


class HarmonyParser(ToolCallParser):
    """Reads messages with a recipient, which stands before or after the channel. The first message's header goes on
    from a prompt that ends with `<|start|>assistant`. Reasoning is told apart before: see `HarmonySplitter`.

    <|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1, "b": 2}<|call|>
    <|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1, "b": 2}<|call|>
    """

    def _parse(self) -> Waiting[None]:
        at_start = yield from self._starts_with_recipient()
        while at_start or (yield from self._text_up_to(START, CHANNEL)):
            at_start = False
            begin = yield from self._head()
            if begin is None:
                self._give(self._held[:1])
                self._drop(1)
                continue
            self._start(begin[0])
            self._drop(begin[1])
            yield from self._json_arguments()
            self._end_call()
            if self.satisfied:
                return
            yield from self._skip(CALL)
            yield from self._skip(END)

    def _starts_with_recipient(self) -> Waiting[bool]:
        while True:
            text = self._held.lstrip()
            if text.startswith(_TO):
                return True
            if self._final or not _TO.startswith(text):
                return False
            yield

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


def harmony_opening(name: str | None) -> str:
    """Text that begins a call; see `hermes_opening`."""
    head = f"{CHANNEL}commentary to=functions."
    return head if name is None else f"{head}{name} {CONSTRAIN}json{MESSAGE}"
