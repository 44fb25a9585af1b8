"""Python's literals to JSON text, as they come."""

from __future__ import annotations

import re

from kvarn.text.tool_calls.base import ToolCallParser, Waiting
from kvarn.text.tool_calls.json_scan import to_json

_KEY = re.compile(r"([A-Za-z_]\w*)\s*=")
_KEY_SO_FAR = re.compile(r"(?:[A-Za-z_]\w*\s*)?\Z")
_WORD = (re.compile(r"[A-Za-z_]"), re.compile(r"[\w.]*"))
_NUMBER = (re.compile(r"[\d.+-]"), re.compile(r"[\w.+-]*"))
"""How tokens begin and go on."""
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{1,3})|(.))", re.DOTALL)
_LONGEST_ESCAPE = 10

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_CLOSERS = {"[": "]", "(": "]", "{": "}"}
_PREFIXES = frozenset(["r", "b", "u", "f", "rb", "br", "fr", "rf"])


class PythonicParser(ToolCallParser):
    """Reads a call's arguments as Python writes them, `a=1, b="x")`, into a JSON object.

    Strings are given out in pieces, other values token by token. What is no literal stays as near to it as JSON can: a
    bare word becomes a string, an argument without a name is called `arg` and its number.
    """

    def _python_arguments(self) -> Waiting[None]:
        """Read up to the closing bracket; the opening one has been read."""
        count = 0
        while (place := (yield from self._next())) is not None:
            self._drop(place)
            if self._held[0] == ")":
                self._drop(1)
                self._argue("}" if count else "{}")
                return
            if self._held[0] == ",":
                self._drop(1)
                continue
            key = yield from self._keyword()
            self._argue(("{" if count == 0 else ", ") + to_json(key or f"arg{count}") + ": ")
            count += 1
            yield from self._python_value()

    def _keyword(self) -> Waiting[str | None]:
        while (found := _KEY.match(self._held)) is None:
            if self._final or _KEY_SO_FAR.match(self._held) is None:
                return None
            yield
        self._drop(found.end())
        return found[1]

    def _python_value(self) -> Waiting[None]:
        """Read up to the comma or bracket that ends the argument."""
        closers: list[str] = []
        comma, empty = False, True  # a comma is only written where something follows it
        while (place := (yield from self._next())) is not None:
            self._drop(place)
            mark = self._held[0]
            if mark in ",)" and not closers:
                self._argue("null" if empty else "")
                return
            if mark == "," or mark in "])}":
                self._drop(1)
                comma = mark == ","
                self._argue("" if comma else closers.pop() if closers else mark)
                continue
            self._argue(", " if comma else "")
            comma = empty = False
            if mark in _CLOSERS:
                closers.append(_CLOSERS[mark])
            yield from self._python_token(mark)

    def _python_token(self, mark: str) -> Waiting[None]:
        """Read one token, which begins with `mark`."""
        if mark in "\"'":
            yield from self._python_string(raw=False)
        elif (word := (yield from self._token(_WORD))) is not None:
            if word.lower() in _PREFIXES and self._held[:1] in ("'", '"'):
                yield from self._python_string(raw="r" in word.lower())
            else:
                self._argue(_WORDS.get(word) or to_json(word))
        elif (number := (yield from self._token(_NUMBER))) is not None:
            self._argue(_number(number))
        else:
            self._drop(1)
            self._argue({"(": "[", ":": ": "}.get(mark, mark))

    def _token(self, kind: tuple[re.Pattern[str], re.Pattern[str]]) -> Waiting[str | None]:
        """What comes next, if it is of this kind, whole."""
        begins, goes_on = kind
        found = begins.match(self._held)
        if found is None:
            return None
        end = found.end()
        while (found := goes_on.match(self._held, end)) is not None:
            end = found.end()
            if end < len(self._held) or self._final:
                break
            yield
        token = self._held[:end]
        self._drop(end)
        return token

    def _python_string(self, *, raw: bool) -> Waiting[None]:
        while len(self._held) < 3 and not self._final:
            yield
        quote = self._held[:3] if self._held[:3] == self._held[0] * 3 else self._held[0]
        ends = re.compile(rf"\\|{quote}")
        self._drop(len(quote))
        self._argue('"')
        while True:
            found = ends.search(self._held)
            certain = len(self._held) if self._final else max(0, len(self._held) - len(quote) + 1)
            end = certain if found is None else found.start()
            self._argue(_inside(self._held[:end]))
            self._drop(end)
            if found is not None and found[0] == quote:
                self._drop(len(quote))
                self._argue('"')
                return
            if found is not None:
                yield from self._escape(raw)
            elif self._final:
                return
            else:
                yield

    def _escape(self, raw: bool) -> Waiting[None]:
        while len(self._held) < _LONGEST_ESCAPE and not self._final:
            yield
        found = _ESCAPE.match(self._held)
        if found is None:  # a lone backslash at the end of the text
            self._drop(1)
            self._argue("\\\\")
        elif raw:
            self._argue(_inside(self._held[:2]))
            self._drop(2)
        else:
            self._drop(found.end())
            self._argue(_escaped(found))


def _inside(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return to_json(text)[1:-1]


def _escaped(found: re.Match[str]) -> str:
    *digits, octal, plain = found.groups()
    code = next((int(each, 16) for each in digits if each), int(octal, 8) if octal else None)
    if code is None:
        return _inside(plain if plain in "\\'\"" else _PLAIN_ESCAPES.get(plain, found[0]))
    if code > 0x10FFFF:
        return _inside(found[0])
    # Half of a character above U+FFFF: the other half comes in an escape of its own.
    return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else _inside(chr(code))


def _number(text: str) -> str:
    for kind in (lambda: int(text, 0), lambda: int(text), lambda: float(text)):
        try:
            value = kind()
            return to_json(value) if value - value == 0 else to_json(text)  # neither infinite nor NaN
        except (ValueError, OverflowError):
            continue
    return to_json(text)
