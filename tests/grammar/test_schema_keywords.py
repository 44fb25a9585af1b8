"""Each keyword of JSON Schema is enforced, or refused by its name; those without effect in JSON Schema have none."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.text import MAX_GRAMMAR_BYTES, check, from_choices, from_ebnf, from_json_schema, from_regex, limits
from kvarn.grammar.vocabulary import Vocabulary

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
CLOSED = {"additionalProperties": False}
DRAFT7 = "http://json-schema.org/draft-07/schema#"


def accepts(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    matcher = LLMatcher(vocabulary.library, grammar, log_level=0, limits=limits())
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())  # in this vocabulary bytes are tokens
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


ENFORCED: list[tuple[dict[str, Any], Any, Any]] = [
    (INTEGER, 1, "a"),
    ({"type": ["string", "null"]}, None, 1),
    ({"enum": [1, "a", None, {"x": 1}]}, {"x": 1}, 2),
    ({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    ({"type": "object", "properties": {"a": INTEGER}}, {"a": 1}, {"a": "x"}),
    ({"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, {"a": 1}, {}),
    ({"type": "object", "properties": {"a": INTEGER}, **CLOSED}, {"a": 1}, {"b": 1}),
    ({"type": "object", "additionalProperties": INTEGER}, {"b": 1}, {"b": "x"}),
    ({"type": "object", "patternProperties": {"^a$": INTEGER}, **CLOSED}, {"a": 1}, {"b": 1}),
    ({"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1, **CLOSED}, {"a": 1}, {}),
    ({"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1}, {"c": "x"}, {"a": "x"}),
    (
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, **CLOSED},
        {"a": 1, "c": 1},
        {"b": 1},
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "maxProperties": 2, **CLOSED},
        {"b": 1, "c": 1},
        {"a": 1, "b": 1, "c": 1},
    ),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
    ({"type": "array", "prefixItems": [{}], "unevaluatedItems": INTEGER}, ["a", 1], ["a", "a"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 0.25, 0),
    ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}, -0.5, 0),
    ({"type": "number", "allOf": [{"exclusiveMinimum": 1}, {"maximum": 1.5}]}, 1.5, 1),
    ({"type": "number", "minimum": 0, "maximum": 0.999}, 0.9, 1),
    ({"type": "number", "multipleOf": 0.25}, 0.5, 0.2),
    ({"type": "integer", "maximum": 2**63 - 1}, 2**53 - 1, 2**53 + 1),
    ({"type": "string", "format": "date"}, "2024-02-29", "2023-02-29"),
    ({"type": "string", "format": "date"}, "0004-02-29", "0000-01-01"),
    ({"type": "string", "format": "time"}, "23:59:60Z", "22:59:60Z"),
    ({"type": "string", "format": "date-time"}, "1998-12-31T15:59:60-08:00", "1998-12-31T15:59:60-07:00"),
    ({"type": "string", "format": "hostname"}, ".".join(["a" * 49] * 5), ".".join(["a" * 50] * 5)),
    ({"type": "string", "format": "email"}, "a" * 64 + "@b.se", "a" * 65 + "@b.se"),
    (
        {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "maxProperties": 1, **CLOSED},
        {"b": 1},
        {"a": 1, "b": 1},
    ),
    ({"type": "array", "items": INTEGER}, [1, 2], [1, "a"]),
    ({"type": "array", "prefixItems": [INTEGER, TEXT], "items": False}, [1, "a"], [1, "a", 1]),
    ({"$schema": DRAFT7, "type": "array", "items": [INTEGER], "additionalItems": False}, [1], [1, 1]),
    ({"type": "array", "items": INTEGER, "minItems": 2}, [1, 1], [1]),
    ({"type": "array", "items": INTEGER, "maxItems": 1}, [1], [1, 1]),
    ({"type": "string", "minLength": 2}, "ab", "a"),
    ({"type": "string", "maxLength": 2}, "ab", "abc"),
    ({"type": "string", "pattern": "^a+$"}, "aa", "ab"),
    ({"type": "string", "pattern": "b"}, "abc", "ac"),
    ({"type": "number", "minimum": 1.5}, 1.5, 1.4),
    ({"type": "number", "maximum": 1.5}, 1.5, 1.6),
    ({"type": "integer", "exclusiveMinimum": 1}, 2, 1),
    ({"type": "integer", "exclusiveMaximum": 1}, 0, 1),
    ({"type": "integer", "multipleOf": 3}, 9, 10),
    ({"type": "number", "multipleOf": 0.5}, 1.5, 1.6),
    ({"anyOf": [INTEGER, {"const": "a"}]}, "a", "b"),
    ({"allOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, 2, 3),
    ({"oneOf": [INTEGER, TEXT]}, "a", None),
    ({"$defs": {"a": INTEGER}, "$ref": "#/$defs/a"}, 1, "a"),
    ({"definitions": {"a": INTEGER}, "$ref": "#/definitions/a"}, 1, "a"),
    ({"$defs": {"a": {"$anchor": "x", "type": "integer"}}, "$ref": "#x"}, 1, "a"),
    ({"$defs": {"a": INTEGER}, "$ref": "#/$defs/a", "minimum": 3}, 3, 2),
    ({"type": "string", "format": "date"}, "2026-11-23", "2026-13-23"),
    ({"type": "string", "format": "time"}, "10:00:00Z", "25:00:00Z"),
    ({"type": "string", "format": "date-time"}, "2026-11-23T10:00:00Z", "2026-11-23"),
    ({"type": "string", "format": "duration"}, "P1D", "1D"),
    ({"type": "string", "format": "email"}, "a@b.se", "a"),
    ({"type": "string", "format": "hostname"}, "a.se", "a..se"),
    ({"type": "string", "format": "ipv4"}, "10.0.0.1", "10.0.0.256"),
    ({"type": "string", "format": "ipv6"}, "::1", "1"),
    ({"type": "string", "format": "uri"}, "http://a.se/b", "b"),
    ({"type": "string", "format": "uuid"}, "12345678-1234-1234-1234-123456789abc", "1234"),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), ENFORCED)
def test_a_keyword_is_enforced(vocabulary: Vocabulary, schema: dict[str, Any], right: Any, wrong: Any) -> None:
    grammar = from_json_schema(schema)
    check(grammar)
    assert accepts(vocabulary, grammar, json.dumps(right))
    assert not accepts(vocabulary, grammar, json.dumps(wrong))
    if "format" not in schema:
        jsonschema.validate(right, schema)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"not": TEXT}, "'not'"),
    ({"if": {"const": 1}, "then": INTEGER, "else": TEXT}, "'if'"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    ({"type": "array", "contains": INTEGER, "minContains": 1, "maxContains": 2}, "'contains'"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "'propertyNames'"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, "'dependentSchemas'"),
    ({"type": "object", "dependencies": {"a": ["b"]}}, "'dependencies'"),
    ({"type": "object", "anyOf": [{"required": ["a"]}], "unevaluatedProperties": False}, "'unevaluatedProperties'"),
    ({"type": "array", "anyOf": [{"minItems": 1}], "unevaluatedItems": False}, "'unevaluatedItems'"),
    ({"const": 2**53 + 1}, "'const'"),
    ({"enum": [1, {"a": -(10**30)}]}, "'enum'"),
    ({"type": "integer", "minimum": 2**53}, "'minimum'"),
    ({"type": "integer", "exclusiveMaximum": -(2**60)}, "'exclusiveMaximum'"),
    ({"type": "integer", "multipleOf": 99_999_989}, "'multipleOf'"),
    ({"const": "a\x01"}, "control character"),
    ({"enum": ["a\x7f"]}, "control character"),
    ({"$ref": "#/x", "x": INTEGER}, "'$defs'"),
    ({"type": "object", "properties": {each: {} for each in "abcdefghijklmn"}, "minProperties": 7}, "'minProperties'"),
    ({"type": "object", "properties": {"a": {}}, "maxProperties": 1}, "'maxProperties'"),
    ({"$dynamicRef": "#a"}, "'$dynamicRef'"),
    ({"$recursiveRef": "#"}, "'$recursiveRef'"),
    ({"$ref": "http://example.com/schema"}, "http://example.com/schema"),
    ({"oneOf": [{"type": "number"}, INTEGER]}, "oneOf"),
    ({"type": "string", "format": "iri"}, "iri"),
    ({"type": "string", "pattern": "^(?=a)"}, "look-around"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
    ({"type": "whole"}, "whole"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no text matches"),
    ({"x-guidance": {"lenient": True}, "not": TEXT}, "'not'"),
    ({"type": "object", "minProperties": 2}, "'minProperties'"),
    ({"type": "object", "patternProperties": {"^a": INTEGER}, "minProperties": 2, **CLOSED}, "'minProperties'"),
]


@pytest.mark.parametrize(("schema", "named"), REFUSED)
def test_a_keyword_that_cannot_be_enforced_is_refused_by_name(schema: dict[str, Any], named: str) -> None:
    for place in (schema, {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}):
        if place is not schema and ("$ref" in schema or named == "Unsatisfiable"):
            continue  # references begin at the root; an array may be empty
        with pytest.raises(GrammarError) as error:
            check(from_json_schema(place))
        assert named in str(error.value) or place is not schema


@pytest.mark.parametrize(
    "more",
    [
        {"uniqueItems": False, "then": TEXT, "else": False, "minContains": 2, "maxContains": 1, "not": False},
        {"dependencies": {"a": [], "b": True}},
        {"if": TEXT},
        {"if": TEXT, "then": True},
        {"contains": TEXT, "minContains": 0},
        {"dependentRequired": {}, "dependentSchemas": {"a": True}, "propertyNames": True, "unevaluatedItems": {}},
        {"unevaluatedProperties": True, "minProperties": 0, "minItems": 0, "required": []},
        {"title": "a", "description": "b", "default": 1, "examples": [1], "deprecated": True, "readOnly": True},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "c", "$id": "http://example.com/a"},
        {"format": "int32", "nullable": True, "discriminator": {"propertyName": "a"}, "x-order": 1},
    ],
)
def test_what_has_no_effect_in_json_schema_has_none(vocabulary: Vocabulary, more: dict[str, Any]) -> None:
    grammar = from_json_schema({**INTEGER, **more})
    check(grammar)
    assert accepts(vocabulary, grammar, "12") and not accepts(vocabulary, grammar, "null")


def test_a_name_is_written_in_one_way_only(vocabulary: Vocabulary) -> None:
    """Else one that is written otherwise would pass for another, or stand there twice."""
    schema = {
        "type": "object",
        "properties": {"a": INTEGER, "b\n\x02\x7f": INTEGER},
        "patternProperties": {"^c\t": INTEGER},
    }
    grammar = from_json_schema(schema)
    check(grammar)
    for text in ('{"a": 1}', '{"b\\n\\u0002\x7f": 1}', '{"c\\t": 1}', '{"d\\n\\"": "x"}'):
        assert accepts(vocabulary, grammar, text), text
    for text in (
        '{"\\u0061": 1}',
        '{"b\\u000a\\u0002\x7f": "x"}',
        '{"c\\u0009": "x"}',
        '{"\\u0063\\t": "x"}',
        '{"d\\/": 1}',
    ):
        assert not accepts(vocabulary, grammar, text), text


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (from_ebnf('?start: "a" | b\n!b: "b"'), ["a", "b"], ["!"]),
        (from_ebnf('!start: "a"\n?x: "b"'), ["a"], ["b"]),
        (from_ebnf('root ::= "\\u0041\\u00e9\\x42" [\\u0043-\\u0045] "\\U0001F600"'), ["AéBC😀", "AéBE😀"], ["AéBF😀"]),
        (from_ebnf('root ::= "\\u0022\\u005c" | "\\\\u0041"'), ['"\\', "\\u0041"], ["A"]),
        (from_choices(["a\x7f", "\x00", "a\nb", 'a"', "\\"]), ["a\x7f", "\x00", "a\nb", 'a"', "\\"], ["a"]),
        (from_choices([f"c{number}" for number in range(4096)]), ["c0", "c4095"], ["c4096"]),
    ],
)
def test_grammars_and_choices_mean_what_they_say(vocabulary, grammar, right, wrong):
    check(grammar)
    for text in right:
        assert accepts(vocabulary, grammar, text), text
    for text in wrong:
        assert not accepts(vocabulary, grammar, text), text


def test_problems_are_told_without_llguidances_options() -> None:
    for schema in (
        {"oneOf": [{"type": "number"}, INTEGER]},
        {"allOf": [{"type": "object", "minProperties": 1}, {"properties": {"a": INTEGER, "b": INTEGER}}]},
        {"type": "object", "properties": {f"p{number}": {} for number in range(1500)}},
    ):
        with pytest.raises(GrammarError) as error:
            check(from_json_schema(schema))
        assert not re.search("coerce|option|limit|row|fuel|verbose|recursive", str(error.value)), error.value


def test_white_space_is_fixed_whatever_a_schema_says(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "x-guidance": {"whitespace_flexible": True}}
    grammar = from_json_schema(schema)
    assert accepts(vocabulary, grammar, '{"a": 1}')
    for text in ('{"a":  1}', '{ "a": 1}', '{"a":1}', ' {"a": 1}', '{"a": 1} ', '{\n"a": 1}'):
        assert not accepts(vocabulary, grammar, text)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: from_regex("(a"), "unclosed group"),
        (lambda: from_regex(r"(a)\1"), "backreferences"),
        (lambda: from_regex(r"[^\s\S]"), "no text matches"),
        (lambda: from_ebnf("nonsense"), "cannot be read"),
        (lambda: from_ebnf('root ::= "a" b'), "'b'"),
        (lambda: from_ebnf("start: missing"), "missing"),
        (lambda: from_ebnf('start: start "a"'), "no text matches"),
        (lambda: from_ebnf("root ::= " + "(" * 5000 + '"a"' + ")" * 5000), "nested too deeply"),
        (lambda: from_choices([]), "choices"),
        (lambda: from_choices(["a", ""]), "empty"),
        (lambda: from_choices(["\ud800"]), "surrogate"),
        (lambda: from_regex("a" * MAX_GRAMMAR_BYTES), "too large"),
        (lambda: from_json_schema({"enum": list(range(200_000))}), "too large"),
    ],
)
def test_broken_grammars_are_refused_with_a_reason(make: Any, named: str) -> None:
    with pytest.raises(GrammarError) as error:
        check(make())
    assert named in str(error.value) and len(str(error.value)) < 600


def test_what_would_take_long_to_build_is_refused() -> None:
    costly = " & ".join(f"/(.*{number}.*){{3}}/" for number in range(40))
    with pytest.raises(GrammarError):
        check(from_ebnf(f"start: A\nA: {costly}"))
