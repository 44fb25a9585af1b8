"""What holds for every format, whatever a model writes; and how a model's format is found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text.tool_calls.formats import (
    DEEPSEEK,
    DEEPSEEK_BARE,
    GLM,
    GPT_OSS,
    GRANITE,
    GRANITE_HERMES,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_TAGGED,
    PHI,
    PHI_FUNCTOOLS,
    PYTHONIC,
    ToolFormat,
    find_format,
)
from profiles import examples
from tool_events import at_every_split, cut_at, joined, run

FORMATS = [
    *(HERMES, LLAMA3, MISTRAL, MISTRAL_TAGGED, PYTHONIC),
    *(GPT_OSS, DEEPSEEK, DEEPSEEK_BARE, GLM, GRANITE, PHI, PHI_FUNCTOOLS),
]
NAMES = ("f", "get_weather", "add-2")
CALL_TEXTS = {
    HERMES: '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
    LLAMA3: '<|python_tag|>{{"name": "{name}", "parameters": {arguments}}}',
    MISTRAL_TAGGED: "[TOOL_CALLS]{name}[ARGS]{arguments}",
    GPT_OSS: "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
    DEEPSEEK: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    DEEPSEEK_BARE: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    GRANITE: '<|tool_call|>[{{"name": "{name}", "arguments": {arguments}}}]',
    GRANITE_HERMES: '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
    PHI: '<|tool_call|>[{{"name": "{name}", "arguments": {arguments}}}]<|/tool_call|>',
    PHI_FUNCTOOLS: 'functools[{{"name": "{name}", "arguments": {arguments}}}]',
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 500), max_size=8)

PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "name", "arguments"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": "', "[f(a=1)", "f(", "a=", "f[ARGS]{"),
        *('"', "'", "\\", "\\u", "{", "}", "[", "]", "(", ")", ",", ":", ";", " ", "\n", "x", "<", "</"),
        *("1", "+", "é", "\ud800", "f", "to=f", "<|start|>", "<|channel|>commentary", "<|message|>", "<|call|>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>", "<｜tool▁sep｜>", "```json"),
        *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_call|>", "<|/tool_call|>", "functools"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ]
)


@pytest.mark.parametrize("kind", CALL_TEXTS, ids=lambda kind: kind.opening(None))
@settings(max_examples=examples(80))
@given(calls=CALLS, cuts=CUTS)
def test_calls_written_as_the_format_says_are_found_at_every_split(kind, calls, cuts):
    form = CALL_TEXTS[kind]
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    text = "\n".join(form.format(name=name, arguments=arguments) for name, arguments in written)
    expected = [("call", name, arguments) for name, arguments in written]
    for parts in (cut_at(text, cuts), list(text), [text]):
        assert run(kind, parts, NAMES) == expected


@settings(max_examples=examples(80))
@given(calls=st.lists(st.tuples(st.sampled_from(("f", "get_weather")), ARGUMENTS), min_size=1, max_size=3), cuts=CUTS)
def test_python_calls_are_found_at_every_split(calls: list[tuple[str, dict[str, Any]]], cuts: list[int]) -> None:
    def call(name: str, arguments: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    text = f"[{', '.join(call(*each) for each in calls)}]"
    seen = run(LLAMA3, cut_at(text, cuts), NAMES)
    assert [(name, json.loads(arguments)) for _, name, arguments in seen] == calls
    assert run(LLAMA3, list(text), NAMES) == seen


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.opening(None))
@settings(max_examples=examples(120))
@given(pieces=st.lists(PIECES, max_size=9), cuts=CUTS, max_calls=st.sampled_from([None, None, 1]), forced=st.booleans())
def test_no_split_changes_what_is_found_and_nothing_raises(kind, pieces, cuts, max_calls, forced):
    text = "".join(pieces)
    options: dict[str, Any] = {"max_calls": max_calls, "opening": kind.opening("f") if forced else ""}
    whole = run(kind, [text], NAMES, **options)
    assert run(kind, cut_at(text, cuts), NAMES, **options) == whole
    assert run(kind, list(text), NAMES, **options) == whole
    if not any(part[0] == "call" for part in whole):
        assert "".join(part[1] for part in whole) == text


CUT_TEXTS = {
    kind: text.format(name="get_weather", arguments='{"city": "Lund"}') for kind, text in CALL_TEXTS.items()
} | {
    PYTHONIC: '[get_weather(city="Lund")]',
    MISTRAL: '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Lund"}}]',
    GLM: "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Lund</arg_value>\n</tool_call>",
}


@pytest.mark.parametrize("kind", CUT_TEXTS, ids=lambda kind: kind.opening(None))
def test_of_a_call_that_is_cut_off_nothing_is_text_and_it_is_open_until_its_arguments_are_whole(kind):
    text = "Well, 1 < 2.\n" + CUT_TEXTS[kind]
    whole = [("text", "Well, 1 < 2."), ("call", "get_weather", '{"city": "Lund"}')]
    states = []
    for end in range(len("Well, 1 < 2."), len(text) + 1):
        parser = kind.make_parser(NAMES)
        seen = joined(parser.push(text[:end]) + parser.flush(cut_off=True))
        assert (seen[0][0], seen[0][1].rstrip()) == whole[0]
        assert seen == whole if len(seen) == 2 and not parser.is_open else len(seen) == 1 + parser.is_open
        states.append((len(seen), parser.is_open))
    assert sorted(set(states), key=states.index)[-1] == (2, False) and states == sorted(
        states, key=lambda state: (state[0], not state[1])
    )


A1 = '{"a": 1}'
FORCED = [
    (HERMES, f" {A1}}}\n</tool_call>", f' "f", "arguments": {A1}}}'),
    (LLAMA3, f" {A1}}}", f' "f", "parameters": {A1}}}'),
    (MISTRAL, f" {A1}}}]", f' "f", "arguments": {A1}}}]'),
    (MISTRAL_TAGGED, A1, f"f[ARGS]{A1}"),
    (GPT_OSS, f"{A1}<|call|>", f"f <|constrain|>json<|message|>{A1}"),
    (DEEPSEEK, f"{A1}\n```<｜tool▁call▁end｜>", f"f\n```json\n{A1}\n```"),
    (DEEPSEEK_BARE, f"{A1}<｜tool▁call▁end｜>", f"f<｜tool▁sep｜>{A1}"),
    (GRANITE, f" {A1}}}]", f' "f", "arguments": {A1}}}]'),
    (PHI, f" {A1}}}]<|/tool_call|>", f' "f", "arguments": {A1}}}]'),
    (GLM, "<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "f<arg_key>a</arg_key><arg_value>1</arg_value>"),
]


@pytest.mark.parametrize(("kind", "named", "unnamed"), FORCED, ids=lambda value: getattr(value, "name", None))
def test_a_call_begun_in_the_prompt_goes_on_in_the_answer_and_is_the_only_one(kind, named, unnamed):
    for name, answer in (("f", named), (None, unnamed)):
        again = kind.opening(name) + answer
        more = f"{answer} and {again}"
        for text in (answer, more):
            assert at_every_split(kind, text, NAMES, opening=kind.opening(name), max_calls=1) == [("call", "f", A1)]


@pytest.mark.parametrize("kind", [HERMES, LLAMA3, PYTHONIC, MISTRAL], ids=lambda kind: kind.name)
def test_the_opening_is_never_given_out_as_text(kind: ToolFormat) -> None:
    for answer in ("I will not.", "null", " 5}", ""):
        seen = at_every_split(kind, answer, {"multiply"}, opening=kind.opening("multiply"))
        assert "".join(part[-1] for part in seen) == answer


def test_python_calls_begun_in_the_prompt_go_on_in_the_answer() -> None:
    for opening, answer in (("[f(", "a=1)]"), ("[", "f(a=1)]"), ("[", "f(a=1), f(a=2)]")):
        assert at_every_split(PYTHONIC, answer, NAMES, opening=opening, max_calls=1) == [("call", "f", A1)]


def test_the_end_of_a_cut_off_text_that_begins_no_call_stays(kind: ToolFormat = LLAMA3) -> None:
    for text in ('{"name": "An', "[1, 2", "Hello \n", "a [f"):
        parser = kind.make_parser(NAMES)
        assert joined(parser.push(text) + parser.flush(cut_off=True)) == [("text", text)]


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("… <tool_call> …", (), HERMES),
        ("… <tool_call> …", ("<|python_tag|>",), HERMES),
        ("{{ tools }} [TOOL_CALLS]", (), MISTRAL),
        ("", ("[TOOL_CALLS]",), MISTRAL),
        ("[TOOL_CALLS]{{ name }}[ARGS]", (), MISTRAL_TAGGED),
        ('Respond in the format {"name": …, "parameters": …}', ("<|python_tag|>",), LLAMA3),
        ("[func_name1(params_name1=params_value1)]", ("<|python_tag|>",), PYTHONIC),
        ("<|start|>assistant<|channel|>final<|message|>", (), GPT_OSS),
        ("<tool_call>{{ name }}<arg_key>", (), GLM),
        ("<｜tool▁calls▁begin｜> … ```json", (), DEEPSEEK),
        ("<｜tool▁calls▁begin｜>", ("<tool_call>",), DEEPSEEK_BARE),
        ("write <|tool_call|> followed by a list", (), GRANITE),
        ("<|tool|>{{ tools }}<|/tool|>", ("<|tool_call|>", "<|/tool_call|>"), PHI),
        ("functools[", (), PHI_FUNCTOOLS),
        ("", (), HERMES),
    ],
)
def test_the_format_is_read_from_the_template_and_the_tokens(template, tokens, expected):
    assert find_format("auto", template, tokens.__contains__) is expected


def test_the_configuration_has_the_last_word() -> None:
    named = {"hermes": HERMES, "llama3": LLAMA3, "pythonic": PYTHONIC, "mistral": MISTRAL, "gpt_oss": GPT_OSS}
    for name, expected in (named | {"deepseek": DEEPSEEK_BARE, "glm": GLM, "granite": GRANITE_HERMES}).items():
        assert find_format(name, "<tool_call>", lambda token: False) is expected
