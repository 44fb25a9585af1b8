"""JSON schemas of the kinds that published collections hold, written for these tests: arguments of functions, records,
configurations, events, trees, unions; with each keyword that is enforced."""

from __future__ import annotations

from typing import Any


def record(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    """An object of these properties, all required unless said otherwise, and no others."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def text(longest: int = 6, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **more}


def many(items: Any, most: int = 3, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, **more}


SMALL = {"type": "integer", "minimum": -5, "maximum": 120}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": record(city=text(), unit={"enum": ["celsius", "fahrenheit"]}, days=SMALL),
    "person": record(name=text(minLength=1), age=SMALL, email={"type": ["string", "null"], "maxLength": 5}),
    "optional": record([], a=SMALL, b={"type": "boolean"}, c=text(), d={"type": "null"}),
    "some required": record(["b", "d"], a=SMALL, b={"type": "boolean"}, c=text(), d={"const": "d"}),
    "nested": record(outer=record(middle=record(inner={"type": "boolean"}))),
    "list": many(record(id=SMALL, tags=many(text(3), 2))),
    "at least": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [SMALL, text()], "items": False, "minItems": 2},
    "tuple and more": {"type": "array", "prefixItems": [{"const": "head"}], "items": SMALL, "maxItems": 3},
    "choices": {"enum": ["red", "green", 1, None, {"a": [1, 2]}, ["x"]]},
    "constant": record(version={"const": "1.0"}, kind={"const": {"a": None}}),
    "any of": record(value={"anyOf": [SMALL, text(), {"type": "null"}]}),
    "one of": {
        "oneOf": [
            record(kind={"const": "circle"}, radius=SMALL),
            record(kind={"const": "square"}, side=SMALL),
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    "references": {
        "$defs": {"point": record(x=SMALL, y=SMALL)},
        **record(begin={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"}),
    },
    "definitions": {"definitions": {"id": text(4)}, **record(id={"$ref": "#/definitions/id"})},
    "tree": {
        "$defs": {"node": record(["name"], name=text(2), children=many({"$ref": "#/$defs/node"}, 1))},
        "$ref": "#/$defs/node",
    },
    "pattern": record(code=text(9, pattern="^[A-Z]{2}-[0-9]{1,3}$"), found=text(8, pattern="b+c?")),
    "lengths": record(short=text(1), exact={"type": "string", "minLength": 3, "maxLength": 3}),
    "map": {"type": "object", "patternProperties": {"^[ab]{1,2}$": SMALL}, "additionalProperties": False},
    "typed rest": {**record(id=SMALL), "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "bounds": record(
        low={"type": "integer", "minimum": 10, "maximum": 99},
        above={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
        ratio={"type": "number", "minimum": 0, "maximum": 1},
        step={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50},
    ),
    "dates": record(day={"type": "string", "format": "date"}, at={"type": "string", "format": "time"}),
    "moment": record(at={"type": "string", "format": "date-time"}),
    "ids": record(id={"type": "string", "format": "uuid"}, host={"type": "string", "format": "ipv4"}),
    "names": record(**{"with space": SMALL, 'quo"te': SMALL, "å": {"type": "boolean"}, "$ref_": {"type": "null"}}),
    "deep list": many(many(many(SMALL, 2), 2), 2),
    "configuration": record(
        ["server"],
        server=record(["port"], host=text(4), port={**SMALL, "minimum": 1}, tls={"type": "boolean"}),
        limits=record([], rate=SMALL, burst={"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
        features=many({"enum": ["a", "b", "c"]}, 3),
    ),
    "events": many(
        {"anyOf": [record(type={"const": "start"}, at=SMALL), record(type={"const": "end"}, ok={"type": "boolean"})]}, 2
    ),
    "described": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Point",
        "description": "A point",
        **record(x={**SMALL, "default": 0, "examples": [1]}),
    },
    "open": {"type": "object", "properties": {"a": SMALL}, "required": ["a"], "maxProperties": 2},
}
"""Most of them end soon, whatever is drawn."""
