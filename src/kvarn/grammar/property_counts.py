"""`minProperties` and `maxProperties` beside properties that may be left out, as the ways to keep to them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from typing import Any

from kvarn.grammar.errors import GrammarError

_MAX_PROPERTIES = 2000
"""Most properties in all ways together."""


def as_choices(node: dict[str, Any]) -> dict[str, Any]:
    """The schema with a choice of those properties that are there, where it counts them; llguidance counts only
    where none may be left out. Raises GrammarError where there are too many ways, or names may be written twice."""
    minimum, maximum = _count(node, "minProperties"), _count(node, "maxProperties")
    if minimum is None and maximum is None:
        return node
    listed, required = node.get("properties"), node.get("required")
    listed = listed if isinstance(listed, dict) else {}
    required = required if isinstance(required, list) else []
    optional = [name for name in listed if name not in required and listed[name] is not False]
    unlisted = node.get("additionalProperties") is not False or bool(node.get("patternProperties"))
    if unlisted and (minimum or 0) > 1 + len(set(required)):
        raise GrammarError("'minProperties' above 1 cannot be enforced where names are not listed in 'properties'")
    if not optional and unlisted:
        return node
    if unlisted and maximum is not None:
        raise GrammarError("'maxProperties' cannot be enforced where some properties may be left out and others added")
    fixed = len(set(required))
    need, room = max((minimum or 0) - fixed, 0), len(optional) if maximum is None else maximum - fixed
    if need > len(optional) + unlisted or room < need or room < 0:
        return node  # which llguidance refuses, or refuses to match anything
    return _choice(node, optional, need, room, unlisted)


def _choice(node: dict[str, Any], optional: list[str], need: int, room: int, unlisted: bool) -> dict[str, Any]:
    ways = list(islice(_ways(optional, need, room), _MAX_PROPERTIES))
    if len(ways) * max(len(node["properties"]), 1) > _MAX_PROPERTIES:
        keywords = [key for key in ("minProperties", "maxProperties") if key in node]
        raise GrammarError(f"{' and '.join(map(repr, keywords))} cannot be enforced: there are too many ways")
    rest = {key: value for key, value in node.items() if key not in ("minProperties", "maxProperties")}
    required = node.get("required", [])
    choices: list[dict[str, Any]] = [
        {
            "properties": {name: name in present | may or False for name in optional},
            "required": [*required, *(name for name in optional if name in present and name not in required)],
        }
        for present, may in ways
    ]
    if unlisted and need:
        choices.append({"properties": dict.fromkeys(optional, False), "minProperties": len(set(required)) + 1})
    return {**rest, "allOf": [*(node.get("allOf") or []), {"anyOf": choices}]}


def _ways(optional: list[str], need: int, room: int) -> Iterator[tuple[set[str], set[str]]]:
    """The names that are there, and those that may be, in each of the ways to have some of them."""
    for kept in combinations(optional, min(room, len(optional))):
        for chosen in combinations(range(len(kept)), need):
            last = chosen[-1] if chosen else -1
            yield {kept[place] for place in chosen}, set(kept[last + 1 :])


def _count(node: dict[str, Any], keyword: str) -> int | None:
    value = node.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
