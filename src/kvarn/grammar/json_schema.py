"""JSON schemas as llguidance enforces them exactly: what it would take otherwise is rewritten, or refused by name.

A rewritten schema never allows more than what it stands for. Where it allows less, docs/guides/structured_output.md
says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.numbers import check_number, exact_bounds, has_fractional_bound
from kvarn.grammar.property_counts import as_choices

Schema = dict[str, Any] | bool

_ONE = frozenset(("additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "items")) | {
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
}
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
"""Keywords that hold schemas, by how they hold them."""

_COUNTS = frozenset(f"{end}{what}" for end in ("min", "max") for what in ("Items", "Length", "Properties", "Contains"))
_IN_PLACE = frozenset(
    ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "$ref", "$dynamicRef", "$recursiveRef")
)
"""Keywords that apply schemas to the same value."""

_YEAR = "(?:\\d{3}[1-9]|\\d\\d[1-9]0|\\d[1-9]00|[1-9]000)"
_MONTHS = "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8])"
_LEAP_YEAR = "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = f"(?:{_YEAR}-(?:{_MONTHS})|{_LEAP_YEAR}-02-29)"

_OFFSET = "(?:[zZ]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
_CLOCK = f"(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?{_OFFSET}"


def _leap_seconds() -> str:
    """The last second of a UTC day, in UTC and where whole hours lie between."""
    offsets = [f"\\+{hours:02}:00|-{24 - hours:02}:00" for hours in range(1, 24)]
    elsewhere = [f"{hour:02}:59:60(?:\\.\\d+)?(?:{offset})" for hour, offset in enumerate(offsets)]
    return "|".join(["23:59:60(?:\\.\\d+)?(?:[zZ]|[+-]00:00)", *elsewhere])


_TIME = f"(?:{_CLOCK}|{_leap_seconds()})"

_A, _X = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_LABEL = f"{_A}(?:{_X}?{_A}|{_X}{_A}{_X}{{0,59}}{_A}|{_X}-{_A}(?:{_X}{{0,58}}{_A})?)?"
"""At most 63 characters, without `--` in the third place: such labels are encoded ones (RFC 5890)."""
_HOSTNAME = f"{_LABEL}(?:\\.{_LABEL})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

FORMATS = {
    "date": (f"^{_DATE}$",),
    "time": (f"^{_TIME}$",),
    "date-time": (f"^{_DATE}[tT]{_TIME}$",),
    "hostname": (f"^{_HOSTNAME}$", "^.{1,253}$"),
    "email": (f"^{_ATOM}(?:\\.{_ATOM})*@{_HOSTNAME}$", "^[^@]{1,64}@[^@]{1,189}$"),
}
"""Patterns that stand in a format's place: RFC 3339 with years from 1, RFC 1123, RFC 5321 without quoted names and
addresses in brackets."""


def enforceable(schema: Schema) -> Schema:
    """The schema that llguidance gets. Raises GrammarError where it cannot be enforced, as far as that is known
    here."""
    _check_references(schema)
    rewritten: Schema = _rewritten(schema, fractional=any(map(has_fractional_bound, _nodes(schema))))
    return rewritten


def _rewritten(schema: Any, fractional: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = {key: _below(key, value, fractional) for key, value in schema.items() if key != "x-guidance"}
    _count_in_integers(node)
    _drop_what_has_no_effect(node)
    if node.get("not") in (True, {}):
        return False
    _check_values(node)
    exact_bounds(node, fractional)
    _write_out_format(node)
    _name_unevaluated(node)
    return as_choices(node)


def _count_in_integers(node: dict[str, Any]) -> None:
    """Counts may be written as 2.0."""
    for key in _COUNTS & node.keys():
        if isinstance(node[key], float) and node[key].is_integer():
            node[key] = int(node[key])


def _below(key: str, value: Any, fractional: bool) -> Any:
    if key in _MAPS and isinstance(value, dict):
        return {name: _rewritten(each, fractional) for name, each in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_rewritten(each, fractional) for each in value]
    return _rewritten(value, fractional) if key in _ONE else value


def _any(value: object) -> bool:
    return value is True or value == {}


_NO_EFFECT: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "uniqueItems": lambda value, node: value is False,
    "then": lambda value, node: "if" not in node or _any(value),
    "else": lambda value, node: "if" not in node or _any(value),
    "minContains": lambda value, node: "contains" not in node,
    "maxContains": lambda value, node: "contains" not in node,
    "not": lambda value, node: value is False,
    "dependentRequired": lambda value, node: isinstance(value, dict) and not any(value.values()),
    "dependentSchemas": lambda value, node: isinstance(value, dict) and all(map(_any, value.values())),
    "dependencies": lambda value, node: (
        isinstance(value, dict) and all(each == [] or _any(each) for each in value.values())
    ),
    "propertyNames": lambda value, node: _any(value),
    "unevaluatedProperties": lambda value, node: _any(value) or "additionalProperties" in node,
    "unevaluatedItems": lambda value, node: _any(value) or node.get("items") in (True, False, {}),
    "minItems": lambda value, node: value == 0,
    "minLength": lambda value, node: value == 0,
    "minProperties": lambda value, node: value == 0,
    "required": lambda value, node: value == [],
}
"""Conditions under which a keyword has no effect."""


def _drop_what_has_no_effect(node: dict[str, Any]) -> None:
    if node.get("minContains") == 0 and "maxContains" not in node:
        node.pop("contains", None)
    for key, has_none in _NO_EFFECT.items():
        if key in node and has_none(node[key], node):
            del node[key]
    if "if" in node and "then" not in node and "else" not in node:
        del node["if"]


def _name_unevaluated(node: dict[str, Any]) -> None:
    """Without schemas beside it that apply to the same value it is what `additionalProperties` and `items` are."""
    if node.keys() & _IN_PLACE:
        return
    if "unevaluatedProperties" in node:
        node["additionalProperties"] = node.pop("unevaluatedProperties")
    if "unevaluatedItems" in node and "items" not in node and "contains" not in node:
        node["items"] = node.pop("unevaluatedItems")


_UNWRITTEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Control characters without an escape of their own."""


def _check_values(node: dict[str, Any]) -> None:
    """Refuse values that would be written as others."""
    for keyword in ("const", "enum"):
        for value in _leaves(node.get(keyword)):
            if isinstance(value, str) and _UNWRITTEN.search(value):
                raise GrammarError(f"{keyword!r} holds a string with a control character, which cannot be written")
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_number(keyword, value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (leaf for each in value.values() for leaf in _leaves(each))
    elif isinstance(value, list):
        yield from (leaf for each in value for leaf in _leaves(each))
    else:
        yield value


def _write_out_format(node: dict[str, Any]) -> None:
    """Formats that llguidance knows less exactly."""
    form = node.get("format")
    if isinstance(form, str) and form in FORMATS:
        del node["format"]
        node["allOf"] = [*(node.get("allOf") or []), *({"pattern": each} for each in FORMATS[form])]


def _check_references(schema: Schema) -> None:
    """Refuse references to what is no schema by its place: nothing there is rewritten."""
    known = {place for places, _ in _walk(schema, [""]) for place in places}
    for node in _nodes(schema):
        reference = node.get("$ref")
        document, _, fragment = reference.partition("#") if isinstance(reference, str) else ("", "", "")
        place = unquote(fragment)
        if place.startswith("/") and (document or place not in known):
            raise GrammarError(f"'$ref' to {reference!r} cannot be enforced: put what it names in '$defs'")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    return (node for _, node in _walk(schema, [""]) if isinstance(node, dict))


def _walk(schema: Any, places: list[str]) -> Iterator[tuple[list[str], Schema]]:
    """All schemas in a schema, each with its JSON pointers: from the root, and from schemas that have an `$id`."""
    if not isinstance(schema, dict | bool):
        return
    yield places, schema
    if isinstance(schema, bool):
        return
    if isinstance(schema.get("$id"), str):
        places = [*places, ""]
    for key, value in schema.items():
        inner: list[tuple[str, Any]] = []
        if key in _ONE and isinstance(value, dict | bool):
            inner = [(key, value)]
        elif key in _LISTS and isinstance(value, list):
            inner = [(f"{key}/{number}", each) for number, each in enumerate(value)]
        elif key in _MAPS and isinstance(value, dict):
            inner = [(f"{key}/{name.replace('~', '~0').replace('/', '~1')}", each) for name, each in value.items()]
        for step, each in inner:
            yield from _walk(each, [f"{place}/{step}" for place in places])
