"""The text of a tool's input, out of the JSON arguments that carry it, while these are written."""

from __future__ import annotations

import json
import re

from kvarn.responses.tools import INPUT

_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_MAX_BEGIN_CHARS = 64
"""Characters without a beginning after which none is looked for: each look reads all that has come."""
_STRING = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class CustomInput:
    """Reads `{"input": "..."}` piece by piece; whatever else a model writes is its input as it stands."""

    def __init__(self) -> None:
        self._arguments = ""
        self._read = 0
        """Characters of the arguments whose text has been given out."""
        self._begun = False
        self._ended = False

    def take(self, arguments: str) -> str:
        known = len(self._arguments)
        self._arguments += arguments
        if not self._begun:
            begin = _BEGIN.match(self._arguments) if known <= _MAX_BEGIN_CHARS else None
            if begin is None:
                return ""
            self._begun, self._read = True, begin.end()
        return "" if self._ended else self._next()

    def rest(self) -> str:
        if self._begun:
            return ""
        try:
            parsed = json.loads(self._arguments or '""')
        except (ValueError, RecursionError):
            return self._arguments
        values = list(parsed.values()) if isinstance(parsed, dict) else [parsed]
        return values[0] if len(values) == 1 and isinstance(values[0], str) else self._arguments

    def _next(self) -> str:
        found = _STRING.match(self._arguments, self._read)
        assert found is not None
        self._ended = self._arguments.startswith('"', found.end())
        piece = found[0]
        if not self._ended and (half := _HIGH_SURROGATE.search(piece)):  # its other half is still to come
            piece = piece[: half.start()]
        self._read += len(piece)
        try:
            text = json.loads(f'"{piece}"', strict=False)
        except ValueError:
            return piece
        return str(text).encode("utf-8", "replace").decode() if text else ""


def arguments_of(text: str) -> str:
    return json.dumps({INPUT: text}, ensure_ascii=False)


def arguments_in_pieces(texts: list[str]) -> list[str]:
    """Pieces of arguments, each of which brings one of these texts."""
    bodies = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]
    return [f'{{"{INPUT}":"{bodies[0]}', *bodies[1:]] if bodies else []
