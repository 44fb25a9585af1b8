"""Calls as Llama 3 writes them: an object or a Python list, with no tag of their own."""

from __future__ import annotations

import re

from kvarn.text.tool_calls.base import Waiting
from kvarn.text.tool_calls.pythonic import PythonicParser

_TAG = "<|python_tag|>"
_AT_START = re.compile(r"[\s;]*+(?:<\|python_tag\|>)?\s*+(?=[\[{])")
_AT_START_SO_FAR = re.compile(r"[\s;]*+(?:<\|python_tag\|>\s*+)?")
_BRACKET = re.compile(r"[\[{]")

_FUNCTION = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(\s*(?=\)|[A-Za-z_]\w*\s*=)")
_FUNCTION_SO_FAR = re.compile(r"\s*(?:([A-Za-z_][\w.-]*)\s*(?:\(\s*(?:[A-Za-z_]\w*\s*)?)?)?")
_LONGEST_FUNCTION = 512
"""Characters within which a call's name and first argument must stand, so that nothing is held for long."""


class Llama3Parser(PythonicParser):
    """Reads calls at the beginning of a line, or after `<|python_tag|>`, one after another or parted by semicolons.

    {"name": "add", "parameters": {"a": 1, "b": 2}}
    [add(a=1, b=2), now()]

    An object without `parameters` is not a call, nor is a name that nobody offered: in an answer that happens to be
    JSON nothing else tells them apart.
    """

    def _parse(self) -> Waiting[None]:
        at_start = True
        while (place := (yield from self._find_bracket(at_start))) is not None:
            if self._held[place] == "{":
                called = yield from self._json_call(place, needs_arguments=True)
            else:
                called = yield from self._list(place)
            if self.satisfied:
                return
            at_start = called
            if not called:
                self._give(self._held[: place + 1])
                self._drop(place + 1)

    def _find_bracket(self, at_start: bool) -> Waiting[int | None]:
        """Give out the text before the next place where calls may begin: that of their bracket. None at the end."""
        while at_start and (found := _AT_START.match(self._held)) is None:
            if self._final or not self._may_begin():
                at_start = False
            else:
                yield
                while self._held.isspace() and not self._final:  # cheaper than to look for what cannot be there
                    yield
        if at_start and found is not None:
            return found.end()
        while (place := _bracket_of_call(self._held)) is None:
            end = len(self._held) if self._final else _end_of_certain_text(self._held)
            self._give(self._held[:end])
            self._drop(end)
            if self._final:
                return None
            yield
        end = _end_of_certain_text(self._held[:place])
        self._give(self._held[:end])
        self._drop(end)
        return place - end

    def _may_begin(self) -> bool:
        """Whether what is held may yet turn out to be only what stands before a call."""
        found = _AT_START_SO_FAR.match(self._held)
        assert found is not None
        return _TAG.startswith(self._held[found.end() :])

    def _list(self, begin: int) -> Waiting[bool]:
        """Read the Python list at `begin`; False where it does not begin with a call."""
        called = False
        while (found := (yield from self._function(begin + 1))) is not None:
            called = True
            self._start(found[1])
            self._drop(found.end())
            yield from self._python_arguments()
            self._end_call()
            mark = None if self.satisfied else (yield from self._next())
            if mark is None or self._held[mark] != ",":
                if mark is not None and self._held[mark] == "]":
                    self._drop(mark + 1)
                break
            begin = mark
        return called

    def _function(self, begin: int) -> Waiting[re.Match[str] | None]:
        """The name and bracket of a call with named arguments or none."""
        end = begin + _LONGEST_FUNCTION
        while (found := _FUNCTION.match(self._held, begin, end)) is None:
            so_far = _FUNCTION_SO_FAR.fullmatch(self._held, begin)
            if self._final or len(self._held) >= end or so_far is None or not self._may_be_called(so_far[1] or ""):
                return None
            yield
        return found if self._names is None or found[1] in self._names else None

    def _may_be_called(self, beginning: str) -> bool:
        return self._names is None or any(name.startswith(beginning) for name in self._names)


def _bracket_of_call(text: str) -> int | None:
    """The first bracket that stands at the beginning of a line or after a tag."""
    if "[" not in text and "{" not in text:  # the usual case, and far cheaper than the search
        return None
    for found in _BRACKET.finditer(text):
        before = text[: found.start()].rstrip()
        if before.endswith(_TAG) or "\n" in text[len(before) : found.start()]:
            return found.start()
    return None


def _end_of_certain_text(text: str) -> int:
    """Start of the tail that may still belong to a call: white space, a tag or the beginning of one."""
    rest = text.rstrip()
    if rest.endswith(_TAG):
        return len(rest.removesuffix(_TAG).rstrip())
    start = text.rfind("<", max(0, len(text) - len(_TAG) + 1))
    if start >= 0 and _TAG.startswith(text[start:]):
        return len(text[:start].rstrip())
    return len(rest)


def llama3_opening(name: str | None) -> str:
    """Text that begins an object; see `hermes_opening`. A forced call is one for all these models: arguments in
    Python's form cannot be kept to a schema."""
    return '{"name":' if name is None else f'{{"name": "{name}", "parameters":'
