"""OpenAI's filters over the attributes of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from kvarn.retrieval.types import AttributeValue

Attributes = Mapping[str, AttributeValue]
Filter = Callable[[Attributes], bool]

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"eq": eq, "ne": ne, "gt": gt, "gte": ge, "lt": lt, "lte": le}


def compile_filter(given: Mapping[str, Any]) -> Filter:
    """The predicate that a filter of the shape of `wire.openai.vector_stores.Filter` stands for. A file without the
    attribute passes `ne` and `nin` alone; values of different kinds are unequal, and neither is greater."""
    kind = given["type"]
    if kind in ("and", "or"):
        compiled, joined = [compile_filter(each) for each in given["filters"]], all if kind == "and" else any
        return lambda attributes: joined(each(attributes) for each in compiled)
    key, value = given["key"], given["value"]
    if kind in ("in", "nin"):
        values, wanted = frozenset(map(_tagged, value)), kind == "in"
        return lambda attributes: (key in attributes and _tagged(attributes[key]) in values) == wanted
    return _compare(key, kind, _tagged(value))


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


def _tagged(value: AttributeValue) -> tuple[str, Any]:
    """A value with its kind: True is not 1."""
    return ("boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number", value)
