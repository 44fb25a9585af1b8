"""Arguments by the schema of a function's parameters: whether there are any, and which are strings in formats that
write strings without quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.text.tool_calls.json_scan import plain_json

_NOTES = frozenset(("title", "description", "$schema", "$id", "$comment", "$defs", "definitions"))
"""Keywords of a schema that tell of no argument."""
_LISTS = ("properties", "required", "patternProperties")
"""Keywords that tell of none where they are empty."""
_DEPTH = 64
"""References and combinations that are followed, one inside another: what lies deeper may be anything."""
_MAX_SCHEMAS = 1000
"""Schemas that are looked at for one answer: what comes behind them may be anything."""


def without_arguments(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of a function's parameters tells of no argument at all."""
    said = {key for key, value in schema.items() if key not in _NOTES and not (key in _LISTS and not value)}
    return said <= {"type"} and schema.get("type", "object") in ("object", ["object"])


def read_value(text: str, schema: object, root: Mapping[str, Any]) -> object:
    """Read a text under a schema: the JSON it holds where the schema allows that, else the text itself. References
    begin at `root`."""
    try:
        value = plain_json(text)
    except (ValueError, RecursionError):
        return text

    def fits(each: object) -> bool:
        return _Question(each, root).allowed(schema)

    # Quotes belong to the string, unless anything may stand here.
    quoted = isinstance(value, str) and not (fits(0) and fits([]))
    return text if fits(text) and (quoted or not fits(value)) else value


class _Question:
    """Whether a value may stand under schemas, by what they say of types and of the values themselves, directly or in
    combinations and references. Whatever else they say is not looked at.

    This is read on the event loop: a reference is followed once, and so many schemas are looked at.
    """

    def __init__(self, value: object, root: Mapping[str, Any]) -> None:
        self._value = value
        self._root = root
        self._answers: dict[str, bool] = {}
        """By reference; while one is followed, it allows anything."""
        self._left = _MAX_SCHEMAS

    def allowed(self, schema: object, depth: int = 0) -> bool:
        """The answer under one schema, so many combinations and references deep."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > _DEPTH or self._left < 0:
            return schema is not False
        value = self._value
        if value is None and schema.get("nullable") is True:  # OpenAPI's
            return True
        kinds, types = _types_of(value), schema.get("type")
        if types is not None and not any(map(kinds.__contains__, types if isinstance(types, list) else [types])):
            return False
        named = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(named, list) and not any(kinds == _types_of(each) and value == each for each in named):
            return False
        target = schema.get("$ref")
        if isinstance(target, str) and not self._referred(target, depth + 1):
            return False
        for combination, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
            parts = schema.get(combination)
            if isinstance(parts, list) and not enough(self.allowed(part, depth + 1) for part in parts):
                return False
        return True

    def _referred(self, reference: str, depth: int) -> bool:
        if reference not in self._answers:
            self._answers[reference] = True
            self._answers[reference] = self.allowed(_find(reference, self._root), depth)
        return self._answers[reference]


def _types_of(value: object) -> tuple[str, ...]:
    """The names of a value's type in JSON schema."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return ("integer", "number")
    kinds = {float: "number", str: "string", list: "array", dict: "object"}
    return (kinds.get(type(value), "null"),)


def _find(reference: str, root: Mapping[str, Any]) -> object:
    """Resolve a reference into the same schema; one that names nothing allows anything."""
    found: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if reference.startswith("#") else None
