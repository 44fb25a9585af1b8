"""Bounds and multiples of numbers against exact decimals."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from benchmarks.schema_suite import accepts
from llguidance import LLMatcher

from kvarn.grammar.answers import exact, validator
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.text import bytes_as_tokens, check, from_json_schema, limits
from profiles import effort

CANDIDATES = effort(6000, 200_000)
EACH = 20
BOUNDS = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
STEPS = ("0", "0.1", "-0.1", "0.01", "-0.01", "1", "-1", "0.5", "-0.5", "0.001", "-0.001", "0.000001", "-0.000001")


def number(chance: random.Random) -> float:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice([0, 1, -1, 10, -10, 100, 2, 5, 0.5, -0.5, 0.1, -0.1, 0.01, 1e-5, -1e-5, 99.9, 1e10, -0.05])
    if kind < 0.6:
        return round(chance.uniform(-2, 2), chance.choice([1, 2, 3]))
    return chance.randrange(-1000, 1000) if kind < 0.8 else round(chance.uniform(-200, 200), chance.choice([1, 2]))


def made_schema(chance: random.Random) -> dict[str, Any]:
    bounds = {keyword: number(chance) for keyword in chance.sample(list(BOUNDS), chance.choice([1, 1, 2, 2, 2, 3]))}
    if chance.random() < 0.15:
        bounds["multipleOf"] = chance.choice([1, 2, 3, 5, 7, 0.5, 0.1, 0.01, 0.25, 1.5, 10, 0.3])
    kind = {"type": chance.choice(["number", "number", "integer"])}
    if chance.random() < 0.2:  # joined of parts
        return {**kind, "allOf": [{keyword: bound} for keyword, bound in bounds.items()]}
    return {**kind, **bounds}


def candidate(chance: random.Random, bounds: list[float]) -> str:
    """Near one of the bounds as a rule, in one of the forms of a decimal."""
    near = bool(bounds) and chance.random() < 0.6
    base = chance.choice(bounds) if near else number(chance)
    value = Decimal(repr(base)) + (Decimal(chance.choice(STEPS)) if near else 0)
    text = format(value, "f")
    if chance.random() < 0.2:
        text += "0" if "." in text else ".0"
    return f"-{text.lstrip('-')}" if value == 0 and chance.random() < 0.2 else text


def is_right(text: str, kind: str, bounds: dict[str, float]) -> bool:
    value = Decimal(text)
    steps = Decimal(repr(bounds.get("multipleOf", 0)))
    whole = kind == "number" or value == value.to_integral_value()
    kept = all(holds(value, Decimal(repr(bounds[key]))) for key, holds in BOUNDS.items() if key in bounds)
    return whole and kept and (not steps or value % steps == 0)


def is_plain(text: str) -> bool:
    """Whether it is the shortest form of its value: grammars need not know others."""
    return not (text.endswith("0") and "." in text) and text != "-0"


def is_beside(text: str, bounds: dict[str, float]) -> bool:
    """Whether it is so near to an exclusive bound that it may be left out."""
    open_at = [Decimal(repr(bounds[key])) for key in ("exclusiveMinimum", "exclusiveMaximum") if key in bounds]
    return any(abs(Decimal(text) - bound) < Decimal("0.00001") for bound in open_at)


def test_what_grammars_take_is_what_the_bounds_allow() -> None:
    chance, seen, made = random.Random(1), 0, 0
    while seen < CANDIDATES:
        schema = made_schema(chance)
        parts = [schema, *schema.get("allOf", [])]
        bounds = {key: each[key] for each in parts for key in (*BOUNDS, "multipleOf") if key in each}
        seen += EACH
        try:
            grammar = from_json_schema(schema)
            check(grammar)
        except GrammarError:
            continue
        made += 1
        matcher = LLMatcher(bytes_as_tokens(), grammar, log_level=0, limits=limits())
        is_valid = validator(json.dumps(schema))
        for _ in range(EACH):
            text = candidate(chance, [bound for key, bound in bounds.items() if key != "multipleOf"])
            right = is_right(text, schema["type"], bounds)
            assert is_valid(exact(text)) is right, (schema, text)
            if accepts(matcher, text):
                assert right, (schema, text)
            elif is_plain(text) and "allOf" not in schema and not is_beside(text, bounds):
                assert not right, (schema, text)
    assert made > CANDIDATES / EACH / 2


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({"minimum": 2**53}, True),
        ({"maximum": 2**63 - 1}, False),
        ({"minimum": -(2**63), "maximum": 2**63}, False),
        ({"enum": [2**53 - 1, 1 - 2**53]}, False),
        ({"enum": [2**53 + 1]}, True),
        ({"multipleOf": 1e-8}, False),
        ({"multipleOf": 86400}, False),
        ({"multipleOf": 1_000_000}, False),
        ({"multipleOf": 99_991}, True),
    ],
)
def test_numbers_that_double_precision_does_not_hold_are_refused(schema: dict[str, Any], refused: bool) -> None:
    if refused:
        with pytest.raises(GrammarError, match=f"'{next(iter(schema))}'"):
            from_json_schema(schema)
    else:
        check(from_json_schema(schema))
