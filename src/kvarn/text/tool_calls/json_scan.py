"""JSON text as it comes: where an object ends, and how the object of a call begins."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

_OUTSIDE = re.compile(r'["{}\[\]<]')
_INSIDE = re.compile(r'["\\]')
_LONGEST_HEAD = 512
"""Characters within which a call's name must stand, so that nothing is held for long that is not one."""

_ARGUMENT_KEYS = ("arguments", "parameters")
_KEYS = (*_ARGUMENT_KEYS, "name", "type", "id")
# No group is repeated possessively (`(?:…)*+`): Python 3.11.2, which is Debian 12's, goes on in the wrong place where
# one matches in part.
_IN_STRING = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_STRING = f'"{_IN_STRING}"'
_FIELD = rf'\s*+"(?:name|type|id)"\s*+:\s*+{_STRING}\s*+'
_HEAD = re.compile(
    rf'\{{((?:{_FIELD},)*(?:{_FIELD}(?=\}}))?)(?:\}}|\s*+"(?:arguments|parameters)"\s*+:\s*+)', re.DOTALL
)
"""Up to the arguments, or to the end of an object without any."""
_NAME = re.compile(rf'\{{(?:\s*+"(?:type|id)"\s*+:\s*+{_STRING}\s*+,)*\s*+"name"\s*+:\s*+"([^"\\]*+)("?)', re.DOTALL)
"""Up to the name, or to as much of it as has come."""
_HEAD_SO_FAR = re.compile(
    rf'\{{(?:{_FIELD},)*\s*+(?:"(\w*+)(?:"\s*+(?::\s*+(?:"{_IN_STRING}\\?+(?:"\s*+)?)?)?)?)?', re.DOTALL
)


class JsonScan:
    """Finds the end of an object or list, reading each character once however the text comes. Validates nothing.

    A `<` outside of strings is never JSON: what is being read is broken off before it, so that a closing tag or a
    special token is not swallowed by an object that was left open.
    """

    def __init__(self, depth: int = 0) -> None:
        """Begin inside `depth` brackets."""
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def find_end(self, text: str, begin: int = 0) -> int | None:
        """Read `text` from `begin` on: the place after the last bracket; None where all was read and it goes on."""
        position = begin
        while True:
            if self._escaped and position < len(text):
                self._escaped = False
                position += 1
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if found is None:
                return None
            position = found.end()
            mark = found[0]
            if mark == "<":
                return found.start()
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escaped = True
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return position


class HeadState(Enum):
    """Result for the beginning of an object that is not a `Head`."""

    OPEN = "open"
    WHOLE = "whole"
    """A call perhaps, in an order that shows only when the object is complete."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Head:
    """An object that is a call for certain: `{"name": "f", "arguments": {`."""

    name: str
    arguments: int
    """Position of the arguments' bracket."""


def read_head(text: str, begin: int, names: Collection[str] | None) -> Head | HeadState:
    # Only so much is looked at, however much there is: else the split of the text would tell.
    window = text[begin : begin + _LONGEST_HEAD]
    may_go_on = len(window) < _LONGEST_HEAD
    if names is not None and (named := _NAME.match(window)) is not None and not _may_be_named(named, names):
        return HeadState.OTHER
    found = _HEAD.match(window)
    if found is None:
        so_far = _HEAD_SO_FAR.fullmatch(window) if may_go_on else None
        is_open = so_far is not None and any(key.startswith(so_far[1] or "") for key in _KEYS)
        return HeadState.OPEN if is_open else HeadState.OTHER
    try:
        name = json.loads(f"{{{found[1].rstrip().removesuffix(',')}}}").get("name")
    except ValueError:
        return HeadState.OTHER
    ends = found[0].endswith("}")
    if name == "" or (name is None and ends) or (name is not None and names is not None and name not in names):
        return HeadState.OTHER
    if not ends and found.end() == len(window):
        return HeadState.OPEN if may_go_on else HeadState.OTHER
    if not ends and name is not None and window[found.end()] == "{":
        return Head(name, begin + found.end())
    return HeadState.WHOLE


def _may_be_named(found: re.Match[str], names: Collection[str]) -> bool:
    name, is_whole = found.groups()
    return any(each == name if is_whole else each.startswith(name) for each in names)


def whole_call(text: str, names: Collection[str] | None, *, needs_arguments: bool) -> tuple[str, str] | None:
    """Name and arguments (JSON text) of a complete object, whatever the order of its keys; None where it is no call."""
    try:
        call = plain_json(text)
        arguments: Any = _arguments(call, needs_arguments) if isinstance(call, dict) else None
        if isinstance(arguments, str):  # some models quote them once more
            arguments = plain_json(arguments)
    except (ValueError, RecursionError):
        return None
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(arguments, dict) or not isinstance(name, str) or not name:
        return None
    return (name, to_json(arguments)) if names is None or name in names else None


def plain_json(text: str) -> Any:
    """The value of JSON text. Raises ValueError if it is not JSON, or has a number that JSON has not."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def to_json(value: object) -> str:
    """JSON text of plain data, its characters as they are; lone surrogates, which UTF-8 cannot carry, escaped.
    Raises ValueError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _arguments(call: dict[str, Any], needed: bool) -> Any:
    found = next((call[key] for key in _ARGUMENT_KEYS if key in call), None)
    return {} if found is None and not needed else found


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
