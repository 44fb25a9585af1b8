"""Calls as DeepSeek's V3, R1 and V3.1 write them."""

from __future__ import annotations

import re

from kvarn.text.tool_calls.base import ToolCallParser, Waiting

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE = "```"
_NAMED = re.compile(
    rf"\s*+(?:function{SEPARATOR}(?=\w))?+([\w.-]++)\s*+(?:{SEPARATOR})?+\s*+(?:{_FENCE}json)?+\s*+(?=\{{)"
)
_NAMED_SO_FAR = re.compile(r"[\s\w.<｜▁>`-]*")
_LONGEST_NAME = 256
"""Characters within which a call's name must stand, so that nothing is held for long that is not one."""


class DeepseekParser(ToolCallParser):
    """Reads both forms: a name and a fenced object, and since V3.1 a name and the object itself.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
    ```json
    {"a": 1, "b": 2}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    """

    def _parse(self) -> Waiting[None]:
        while (yield from self._text_up_to(CALLS_BEGIN)):
            begin = self._held.index(CALLS_BEGIN) + len(CALLS_BEGIN)
            calls = self._calls
            while not self.satisfied and (yield from self._call(begin)):
                begin = 0
            if self.satisfied:
                return
            if self._calls > calls:
                yield from self._skip(CALLS_END)
            else:
                self._give(self._held[:begin])
                self._drop(begin)

    def _call(self, begin: int) -> Waiting[bool]:
        """Read the call at `begin`; False, and nothing is given out, where there is none."""
        place = yield from self._tag(begin, CALL_BEGIN)
        found = None if place is None else (yield from self._name(place))
        if found is None:
            return False
        self._start(found[1])
        self._drop(found.end())
        yield from self._json_arguments()
        self._end_call()
        if not self.satisfied:
            yield from self._skip(_FENCE)
            yield from self._skip(CALL_END)
        return True

    def _tag(self, begin: int, tag: str) -> Waiting[int | None]:
        """Position after a tag, if the tag comes next."""
        while True:
            rest = self._held[begin:].lstrip()
            if rest.startswith(tag):
                return len(self._held) - len(rest) + len(tag)
            if self._final or not tag.startswith(rest):
                return None
            yield

    def _name(self, begin: int) -> Waiting[re.Match[str] | None]:
        end = begin + _LONGEST_NAME
        while (found := _NAMED.match(self._held, begin, end)) is None:
            if self._final or len(self._held) >= end or _NAMED_SO_FAR.fullmatch(self._held, begin) is None:
                return None
            yield
        return found if self._names is None or found[1] in self._names else None


def deepseek_opening(name: str | None) -> str:
    """Text that begins the first call, with a fence; see `hermes_opening`."""
    head = f"{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}"
    return head if name is None else f"{head}{name}\n```json\n"


def deepseek_bare_opening(name: str | None) -> str:
    """Text that begins the first call since V3.1; see `hermes_opening`."""
    head = f"{CALLS_BEGIN}{CALL_BEGIN}"
    return head if name is None else f"{head}{name}{SEPARATOR}"
