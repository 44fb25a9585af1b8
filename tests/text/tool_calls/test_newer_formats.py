"""Calls as gpt-oss, DeepSeek, GLM, Granite and Phi write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text.tool_calls.formats import DEEPSEEK, DEEPSEEK_BARE, GLM, GPT_OSS, GRANITE, PHI
from profiles import examples
from tool_events import at_every_split, cut_at, joined

F, G = ("call", "f", '{"a": 1}'), ("call", "g", "{}")
NAMES = ("f", "g")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (GPT_OSS, ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', [F]),
        (
            GPT_OSS,
            'I look.<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
            "<|start|>assistant to=g<|channel|>commentary<|message|>{}<|call|> Done.",
            [("text", "I look."), F, G, ("text", "Done.")],
        ),
        (GPT_OSS, "<|channel|>commentary to=functions.h<|message|>{}", None),
        (GPT_OSS, "<|channel|>commentary to=functions.f<|message|>no object", None),
        (GPT_OSS, "<|channel|>final<|message|>Hello.", None),
        (
            DEEPSEEK,
            'Well. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```'
            "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜> Done.",
            [("text", "Well."), F, G, ("text", "Done.")],
        ),
        (
            DEEPSEEK_BARE,
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [F, G],
        ),
        (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>h\n```json\n{}\n```", None),
        (DEEPSEEK, "<｜tool▁calls▁begin｜> nothing", None),
        (GRANITE, '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', [F, G]),
        (GRANITE, '<tool_call>[{"name": "f", "arguments": {"a": 1}}]', [F]),
        (GRANITE, "<|tool_call|>[1, 2]", None),
        (
            PHI,
            '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "parameters": {}}]<|/tool_call|> Done.',
            [F, G, ("text", "Done.")],
        ),
        (PHI, 'functools[{"name": "f", "arguments": {"a": 1}}]', [F]),
        (PHI, "Use functools, or functools [cache].", None),
        (GLM, "<tool_call>g</tool_call>", [G]),
        (GLM, "<tool_call>h\n<arg_key>a</arg_key>", None),
        (GLM, "<tool_call>f and more", None),
    ],
)
def test_what_is_a_call_is_found_and_the_rest_is_text(kind, text, expected):
    assert at_every_split(kind, text, NAMES) == ([("text", text)] if expected is None else expected)


GLM_CALL = """I call.
<tool_call>f
<arg_key>a</arg_key>
<arg_value>1</arg_value>
<arg_key>b</arg_key>
<arg_value>two "words"</arg_value>
</tool_call>
<tool_call>g<arg_key>c</arg_key><arg_value>[1, {"d": null}]</arg_value></tool_call>
Done."""


def test_glm_writes_a_tag_for_each_value() -> None:
    assert at_every_split(GLM, GLM_CALL, NAMES) == [
        ("text", "I call."),
        ("call", "f", '{"a": 1, "b": "two \\"words\\""}'),
        ("call", "g", '{"c": [1, {"d": null}]}'),
        ("text", "Done."),
    ]


def test_the_last_one_counts_of_glms_values_with_one_key() -> None:
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in ("a1", "b2", "a3"))
    assert at_every_split(GLM, f"<tool_call>f{pairs}</tool_call>", NAMES) == [("call", "f", '{"a": 3, "b": 2}')]
    assert at_every_split(GLM, f"<tool_call>f{pairs}<arg_key>c", NAMES) == [("call", "f", '{"a": 3, "b": 2')]


VALUES: list[tuple[Any, str, object]] = [
    ({"type": "string"}, "16", "16"),
    ({"type": ["string", "null"]}, "456", "456"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "integer"]}, "17", 17),
    ({"type": ["string", "array"]}, '["a"]', ["a"]),
    ({"type": "string", "nullable": True}, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "true", "true"),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "14", "14"),
    ({"allOf": [{"type": "string"}]}, "15", "15"),
    ({"allOf": [{"type": ["string", "integer"]}, {"enum": ["1", 2]}]}, "1", "1"),
    ({"allOf": [{"type": ["string", "integer"]}, {"enum": ["1", 2]}]}, "2", 2),
    ({"$ref": "#/$defs/code"}, "11", "11"),
    ({"$ref": "#/$defs/loop"}, "11", 11),
    ({"$ref": "#/$defs/nowhere"}, "11", 11),
    ({"$ref": "other.json"}, "11", 11),
    ({"enum": ["12", "13"]}, "12", "12"),
    ({"enum": [True, "1"]}, "1", "1"),
    ({"const": "42"}, "42", "42"),
    ({"type": "integer"}, "17", 17),
    ({"type": "integer"}, "1.0", 1.0),
    ({"$ref": "#/$defs/wide"}, "11", 11),
    ({"anyOf": [{"type": "null"}] * 400 + [{"type": "string"}]}, "11", "11"),
    ({}, "1e999", "1e999"),
    ({}, "[-1e999]", "[-1e999]"),
    ({}, "NaN", "NaN"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "18", 18),
    ({"type": "integer"}, "many", "many"),
    ({"type": "boolean"}, "true", True),
    ({"type": "string"}, '"16"', '"16"'),
    ({"enum": ["a", "b"]}, '"a"', "a"),
    ({}, '"16"', "16"),
    ({}, "1", 1),
    (True, "[1]", [1]),
    (None, "word", "word"),
]


@pytest.mark.parametrize(("schema", "text", "value"), VALUES, ids=str)
def test_a_schema_says_which_values_of_glm_are_strings(schema: Any, text: str, value: object) -> None:
    definitions: dict[str, Any] = {"code": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    definitions["wide"] = {"allOf": [{"$ref": "#/$defs/wide"}, {"$ref": "#/$defs/wide"}]}
    for depth in range(60):  # as wide without a loop
        definitions["wide"]["allOf"].append({"$ref": "#/$defs/d0"})
        definitions[f"d{depth}"] = {"allOf": [{"$ref": f"#/$defs/d{depth + 1}"}] * 2}
    parser = GLM.make_parser(NAMES, parameters={"f": {"properties": {"a": schema}, "$defs": definitions}})
    call = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    assert joined(parser.push(call) + parser.flush()) == [("call", "f", json.dumps({"a": value}))]


def test_a_forced_call_of_glm_whose_function_takes_nothing_has_no_arguments() -> None:
    text = "<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    for parameters, arguments in (({"g": {}}, "{}"), ({"g": {"additionalProperties": True}}, '{"a": 1}')):
        parser = GLM.make_parser(NAMES, opening=GLM.opening("g"), max_calls=1, parameters=parameters)
        assert joined(parser.push(text)) == [("call", "g", arguments)]


@settings(max_examples=examples(80))
@given(
    arguments=st.dictionaries(
        st.from_regex(r"[a-z_]{1,6}", fullmatch=True), st.text(st.sampled_from('ab1"{<\n/ é'), max_size=8), max_size=3
    ),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_any_string_of_glm_is_read(arguments: dict[str, str], cuts: list[int]) -> None:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    schema: Any = {"properties": {key: {"type": "string"} for key in arguments}}
    parser = GLM.make_parser(NAMES, parameters={"f": schema})
    events = [event for part in cut_at(f"<tool_call>f\n{pairs}</tool_call>", cuts) for event in parser.push(part)]
    ((_, name, text),) = joined(events + parser.flush())
    assert name == "f" and json.loads(text) == arguments
