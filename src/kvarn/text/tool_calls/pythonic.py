"""Arguments as Python writes them to JSON text, one after another."""

from __future__ import annotations

import ast
import math
import re
import warnings

from kvarn.text.tool_calls.base import ToolCallParser, Waiting
from kvarn.text.tool_calls.json_scan import to_json

_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_OUTSIDE = re.compile(r"""['"\[\](){},]""")
_INSIDE = re.compile(r"""[^\\'"]*+(?:\\.[^\\'"]*+)*""", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


class PythonicParser(ToolCallParser):
    """Reads a call's arguments as Python writes them, `a=1, b="x")`, into a JSON object.

    An argument is given out when it is complete. What is no literal becomes a string as it is written, an argument
    without a name is called `arg` and its number.
    """

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
