"""Bounds of numbers, where llguidance takes them otherwise than JSON Schema."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, TypeGuard

from kvarn.grammar.errors import GrammarError

MAX_EXACT = 2**53 - 1
"""Integers up to here are what they are in double precision, which llguidance keeps numbers in."""
_MAX_REMAINDERS = 50_000
"""Largest `multipleOf`, its factors 2 and 5 not counted: the automaton that counts remainders has as many states."""
_MAX_DIGITS = 17
_MAX_SHOWN = 40  # characters of a number in a message
_BOUNDS = (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1))


def check_number(keyword: str, value: float) -> None:
    """Refuse a number that would be written as another. Raises GrammarError that names the keyword."""
    if not abs(value) <= MAX_EXACT:  # true of NaN, too
        raise GrammarError(
            f"{keyword!r} of {str(value)[:_MAX_SHOWN]} cannot be enforced: numbers are exact up to {MAX_EXACT}"
        )


def has_fractional_bound(node: dict[str, Any]) -> bool:
    values = [node.get(keyword) for low, high, _ in _BOUNDS for keyword in (low, high)]
    return any(isinstance(value, float) and math.isfinite(value) and not value.is_integer() for value in values)


def exact_bounds(node: dict[str, Any], fractional: bool) -> None:
    """Rewrite the bounds of a schema. Raises GrammarError that names the keyword of one that cannot be enforced.

    * Those beyond 2^53 are drawn in to it.
    * llguidance takes the integer at an exclusive bound for allowed where the other bound is a fraction less than 1
    farther from zero. So the bound becomes an inclusive one a billionth away, if any bound in the whole schema is
    `fractional`.
    * It leaves out decimals that are the beginning of a bound's (0.9 of 0.999): they are added as ranges of their own,
    as are multiples with fewer decimals than `multipleOf`.
    """
    for inclusive, exclusive, sign in _BOUNDS:
        for keyword in (inclusive, exclusive):
            if _is_number(node.get(keyword)):
                node[keyword] = _drawn_in(keyword, node[keyword], sign)
    _keep_tighter(node)
    for (inclusive, exclusive, sign), opposite in zip(_BOUNDS, reversed(_BOUNDS), strict=True):
        bound = node.get(inclusive) if node.get(exclusive) is True else node.get(exclusive)
        if fractional and _is_number(bound) and bound == int(bound) and bound * sign >= 0:
            others = [node[keyword] for keyword in opposite[:2] if _is_number(node.get(keyword))]
            if not others or abs(others[0] - bound) < 1:
                del node[exclusive]
                node[inclusive] = _beside(exclusive, bound, sign)
    step = node.get("multipleOf")
    if _is_number(step):
        check_number("multipleOf", step)
        if _remainders(step) > _MAX_REMAINDERS:
            raise GrammarError(f"'multipleOf' of {step} cannot be enforced: it has too many remainders")
    _add_short_decimals(node)


def _keep_tighter(node: dict[str, Any]) -> None:
    for inclusive, exclusive, sign in _BOUNDS:
        closed_at, open_at = node.get(inclusive), node.get(exclusive)
        if _is_number(closed_at) and _is_number(open_at):
            del node[inclusive if open_at * sign >= closed_at * sign else exclusive]


def _beside(keyword: str, bound: float, sign: int) -> float:
    for digits in range(9, 0, -1):
        beside = round(bound + sign * 10.0**-digits, digits)
        if beside != bound:
            return beside
    raise GrammarError(f"{keyword!r} of {bound} cannot be enforced")


def _drawn_in(keyword: str, bound: float, sign: int) -> float:
    if bound * sign > MAX_EXACT or not (isinstance(bound, int) or math.isfinite(bound)):
        check_number(keyword, bound)
    return bound if abs(bound) <= MAX_EXACT else -sign * MAX_EXACT


def _add_short_decimals(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if kind != "number" and not (isinstance(kind, list) and "number" in kind):
        return
    ranges = [{key: node.pop(key) for low, high, _ in _BOUNDS for key in (low, high) if key in node}]
    for inclusive, exclusive, sign in _BOUNDS:
        whole = dict(ranges[0])
        value = whole.pop(exclusive, None) if _is_number(whole.get(exclusive)) else whole.pop(inclusive, None)
        far = [bound * -sign for bound in whole.values()]
        if _is_number(value) and value * sign < 0:
            ranges += [{**whole, inclusive: each} for each in _beginnings(value) if all(each * -sign > f for f in far)]
    steps = [{"multipleOf": node.pop("multipleOf")}] if "multipleOf" in node else [{}]
    steps += [{"multipleOf": each} for each in _wider_steps(steps[0].get("multipleOf"))]
    choices = [{**each, **step} for each in ranges for step in steps]
    if len(choices) > 1:
        node["allOf"] = [*(node.get("allOf") or []), {"anyOf": choices}]
    else:
        node.update(choices[0])


def _beginnings(value: float) -> list[float]:
    text = format(Decimal(repr(value)), "f")
    whole, _, digits = text.partition(".")
    return [float(f"{whole}.{digits[:length]}") for length in range(1, min(len(digits), _MAX_DIGITS))]


def _wider_steps(step: Any) -> list[float]:
    """Multiples of a step that have fewer decimals."""
    if not _is_number(step):
        return []
    text = format(Decimal(repr(step)), "f")
    digits = len(text.partition(".")[2].rstrip("0"))
    units = int(Decimal(text).scaleb(digits))
    shorter = [math.lcm(units, 10**dropped) for dropped in range(1, digits)] if units else []
    return [float(Decimal(each).scaleb(-digits)) for each in shorter]


def _remainders(step: float) -> int:
    left = int("".join(map(str, Decimal(repr(step)).as_tuple().digits)))
    for factor in (2, 5):
        while left and left % factor == 0:
            left //= factor
    return left


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
