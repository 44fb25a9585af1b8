"""Calls as Llama 3 writes them: an object or a Python list, with no tag of their own."""

from __future__ import annotations

import ast
import math
import re
import warnings

from kvarn.text.tool_calls.base import ToolCallParser, Waiting
from kvarn.text.tool_calls.json_scan import to_json

_TAG = "<|python_tag|>"
_AT_START = re.compile(r"[\s;]*+(?:<\|python_tag\|>)?\s*+(?=[\[{])")
_AT_START_SO_FAR = re.compile(r"[\s;]*+(?:<\|python_tag\|>\s*+)?")
_BRACKET = re.compile(r"[\[{]")

_FUNCTION = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(\s*(?=\)|[A-Za-z_]\w*\s*=)")
_FUNCTION_SO_FAR = re.compile(r"\s*(?:([A-Za-z_][\w.-]*)\s*(?:\(\s*(?:[A-Za-z_]\w*\s*)?)?)?")
_LONGEST_FUNCTION = 512
"""Characters within which a call's name and first argument must stand, so that nothing is held for long."""

_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_OUTSIDE = re.compile(r"""['"\[\](){},]""")
_INSIDE = re.compile(r"""[^\\'"]*+(?:\\.[^\\'"]*+)*""", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


class Llama3Parser(ToolCallParser):
    """Reads calls at the beginning of a line, or after `<|python_tag|>`, one after another or parted by semicolons.

    {"name": "add", "parameters": {"a": 1, "b": 2}}
    [add(a=1, b=2), now()]

    An object without `parameters` is not a call, nor is a name that was not offered: in an answer that happens to be
    JSON nothing else tells them apart.

    An argument in Python's form is given out when it is complete. Expressions that are no literals become strings as
    they are written; an argument without a name is called `arg` and its number.
    """

    def _parse(self) -> Waiting[None]:
        at_start = True
        while (place := (yield from self._find_bracket(at_start))) is not None:
            called = yield from self._calls_at(place)
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

    def _calls_at(self, begin: int) -> Waiting[bool]:
        """Read the object or the Python list at `begin`; False where it does not begin with a call."""
        if self._held[begin] == "{":
            return (yield from self._json_call(begin, needs_arguments=True))
        called = False
        while (
            found := (yield from self._named(begin + 1, _FUNCTION, _FUNCTION_SO_FAR, _LONGEST_FUNCTION))
        ) is not None:
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

    def _python_arguments(self) -> Waiting[None]:
        """Read up to the closing bracket; the opening one has been read."""
        count, scan = 0, _ArgumentScan()
        while True:
            end = scan.find_end(self._held)
            text = self._held[:end]
            if text.strip() and end is not None:
                found = _KEY.match(text)
                name, value = (found[1], text[found.end() :]) if found else (f"arg{count}", text)
                head = ("{" if count == 0 else ", ") + to_json(name) + ": "
                self._argue(head + _literal_to_json(value.strip()))
                count += 1
            if end is not None:
                closed = self._held[end] != ","
                self._drop(end + 1)
                if closed:
                    self._argue("}" if count else "{}")
                    self.is_open = False
                    return
                scan = _ArgumentScan()
            elif self._final:
                self._held = ""
                return
            else:
                yield


def _bracket_of_call(text: str) -> int | None:
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


class _ArgumentScan:
    """Finds the comma or the bracket that ends an argument, reading each character once however the text comes."""

    def __init__(self) -> None:
        self._position = 0
        self._depth = 0
        self._quote = ""
        """Quote of the string that is being read."""

    def find_end(self, text: str) -> int | None:
        """Position of the comma or bracket; None if it has not come."""
        while True:
            if self._quote:
                inside = _INSIDE.match(text, self._position)
                assert inside is not None
                self._position = inside.end()
                rest = text[self._position : self._position + 3]
                if len(rest) < len(self._quote) or rest[0] == "\\":
                    return None
                ends = rest.startswith(self._quote)
                self._position += len(self._quote) if ends else 1
                self._quote = "" if ends else self._quote
                continue
            found = _OUTSIDE.search(text, self._position)
            self._position = len(text) if found is None else found.start()
            mark = text[self._position : self._position + 1]
            if mark in "\"'":
                three = text[self._position : self._position + 3]
                if len(three) < 3:  # the string may begin with three quotes, or it is the end of the text
                    return None
                self._quote = three if three == 3 * mark else mark
                self._position += len(self._quote)
                continue
            if mark in ",])}" and self._depth == 0:
                return self._position
            self._depth += (mark in "[({") - (mark in "])}")
            self._position += 1


def _literal_to_json(source: str) -> str:
    if not source:
        return "null"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return to_json(_value(ast.parse(f"({source})", mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return to_json(source)


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=None | bool() | int() | str() as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float())):
            return ast.literal_eval(node)
        case ast.Name(id=word):
            return _WORDS.get(word, word)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {str(_value(key)): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
    raise ValueError("not plain data")
