"""OpenAI's filters over the attributes of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from kvarn.retrieval.types import AttributeValue
from kvarn.wire.openai.errors import ApiError, invalid_request

Attributes = Mapping[str, AttributeValue]
Filter = Callable[[Attributes], bool]

MAX_DEPTH, MAX_PARTS, MAX_VALUES = 8, 128, 1024
"""Bounds of a filter: levels of compounds, comparisons in all, values of one `in`."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"eq": eq, "ne": ne, "gt": gt, "gte": ge, "lt": lt, "lte": le}


def compile_filter(given: Mapping[str, Any], param: str = "filters") -> Filter:
    """The predicate that a filter stands for. A file without the attribute passes `ne` and `nin` alone; values of
    different kinds are unequal, and neither is greater. Raises `ApiError` 400."""
    return _Compiler(param).compile(given, param, 1)


class _Compiler:
    def __init__(self, param: str) -> None:
        self._param = param
        self._parts = 0

    def compile(self, given: Any, where: str, depth: int) -> Filter:
        if not isinstance(given, Mapping):
            raise self._refuse(f"{where!r} must be an object")
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise self._refuse(f"a filter has at most {MAX_DEPTH} levels and {MAX_PARTS} parts")
        kind = given.get("type")
        if kind in ("and", "or"):
            return self._compound(given, kind, where, depth)
        if kind not in (*_COMPARISONS, "in", "nin"):
            kinds = ", ".join([*_COMPARISONS, "in", "nin", "and", "or"])
            raise self._refuse(f"'{where}.type' must be one of {kinds}")
        return self._comparison(given, kind, where)

    def _compound(self, given: Mapping[str, Any], kind: str, where: str, depth: int) -> Filter:
        parts = given.get("filters")
        if not isinstance(parts, list) or not parts:
            raise self._refuse(f"'{where}.filters' must be a list of filters")
        compiled = [self.compile(each, f"{where}.filters[{i}]", depth + 1) for i, each in enumerate(parts)]
        joined = all if kind == "and" else any
        return lambda attributes: joined(each(attributes) for each in compiled)

    def _comparison(self, given: Mapping[str, Any], kind: str, where: str) -> Filter:
        key, value = given.get("key"), given.get("value")
        if not isinstance(key, str):
            raise self._refuse(f"'{where}.key' must be the name of an attribute")
        if kind in ("in", "nin"):
            if not isinstance(value, list) or len(value) > MAX_VALUES or not all(map(_is_value, value)):
                raise self._refuse(f"'{where}.value' must be a list of at most {MAX_VALUES} texts, numbers or booleans")
            values, wanted = frozenset(map(_tagged, value)), kind == "in"
            return lambda attributes: (key in attributes and _tagged(attributes[key]) in values) == wanted
        if value is None or not _is_value(value):
            raise self._refuse(f"'{where}.value' must be a text, a number or a boolean")
        return _compare(key, kind, _tagged(value))

    def _refuse(self, why: str) -> ApiError:
        return invalid_request(f"{why[0].upper()}{why[1:]}.", self._param)


def _compare(key: str, kind: str, wanted: tuple[str, Any]) -> Filter:
    compare = _COMPARISONS[kind]

    def holds(attributes: Attributes) -> bool:
        if key not in attributes:
            return kind == "ne"
        found = _tagged(attributes[key])
        if found[0] != wanted[0]:
            return kind == "ne"
        return compare(found[1], wanted[1])

    return holds


def _is_value(value: Any) -> bool:
    return isinstance(value, str | bool | int | float)


def _tagged(value: AttributeValue) -> tuple[str, Any]:
    """A value with its kind: True is not 1."""
    return ("boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number", value)
