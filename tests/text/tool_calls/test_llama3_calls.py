"""Calls as Llama 3 writes them: objects and Python lists."""

from __future__ import annotations

import json

import pytest

from kvarn.text.tool_calls.events import ToolCallArguments, ToolCallStart
from kvarn.text.tool_calls.formats import LLAMA3
from tool_events import at_every_split

NAMES = {"add", "now", "get_weather"}
CALL = '{"name": "add", "parameters": {"a": 1, "b": "x"}}'
ADDED = ("call", "add", '{"a": 1, "b": "x"}')
NOW = ("call", "now", "{}")


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"<|python_tag|>{CALL}",
        f"\n {CALL}\n",
        '{"type": "function", "name": "add", "parameters": {"a": 1, "b": "x"}}',
        '[add(a=1, b="x")]',
        "<|python_tag|>[ add( a = 1 , b = 'x', ) ]",
    ],
)
def test_a_call_has_many_forms(text: str) -> None:
    assert at_every_split(LLAMA3, text, NAMES) == [ADDED]


def test_calls_follow_each_other_and_texts() -> None:
    now = '{"name": "now", "parameters": {}}'
    assert at_every_split(LLAMA3, f"{CALL}; {now}\n{CALL}", NAMES) == [ADDED, NOW, ADDED]
    assert at_every_split(LLAMA3, f"Let me see:\n{CALL} there.", NAMES) == [
        ("text", "Let me see:"),
        ADDED,
        ("text", "there."),
    ]
    assert at_every_split(LLAMA3, 'So <|python_tag|>[now(), add(a=1, b="x")] done', NAMES) == [
        ("text", "So"),
        NOW,
        ADDED,
        ("text", "done"),
    ]


def test_arguments_are_given_out_while_they_are_written() -> None:
    parser = LLAMA3.make_parser(NAMES)
    assert parser.push('{"name": "add", "parameters": ') == []
    assert [type(event) for event in parser.push('{"a"')] == [ToolCallStart, ToolCallArguments]
    assert parser.push(": 1") == [ToolCallArguments(0, ": 1")]
    parser = LLAMA3.make_parser(NAMES)
    parser.push("[get_weather(")
    assert [type(event) for event in parser.push("city='Uppsala och")] == [ToolCallStart]
    assert parser.push(" Gävle'") == []
    assert parser.push(", days=") == [ToolCallArguments(0, '{"city": "Uppsala och Gävle"')]
    assert parser.push("3)") == [ToolCallArguments(0, ', "days": 3}')]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1),
        ("-2.5e3", -2500.0),
        ("0x10", 16),
        ("1_000", 1000),
        ("+5", 5),
        ("-", "-"),
        ("True", True),
        ("false", False),
        ("None", None),
        ("'it\\'s'", "it's"),
        ('"a\\n\\x41\\u00e5\\U0001F989\\101\\\\"', "a\nAå🦉A\\"),
        ('"\\q"', "\\q"),
        ("r'\\d+'", "\\d+"),
        ("''", ""),
        ("'''say \"hi\" it's ''ok'''", "say \"hi\" it's ''ok"),
        ("[1, 'två', [True]]", [1, "två", [True]]),
        ("(1, 2,)", [1, 2]),
        ("{'a': {'b': [None]}, \"c\": 0}", {"a": {"b": [None]}, "c": 0}),
        ("[]", []),
        ("Paris", "Paris"),
        ("", None),
        ("float('inf')", "float('inf')"),
        ("{'a': [Paris, -1, +2.5, {1: ()}]}", {"a": ["Paris", -1, 2.5, {"1": []}]}),
        ("'a, b)' 'c'", "a, b)c"),
        ("lambda x: x", "lambda x: x"),
        ("(" * 300 + ")" * 300, "(" * 300 + ")" * 300),
        ("1e999", "1e999"),
    ],
)
def test_python_literals_become_json(written: str, value: object) -> None:
    [(_, name, arguments), *rest] = at_every_split(LLAMA3, f"[add(a={written}, b=2)]", NAMES)
    assert name == "add" and arguments.startswith('{"a": ') and arguments.endswith('"b": 2}')
    assert json.loads(arguments) == {"a": value, "b": 2} and not rest


def test_half_characters_in_escapes_never_reach_the_answer() -> None:
    [(_, _, arguments)] = at_every_split(LLAMA3, "[add(a='\\ud83d\\ude00', b='\\udc00', c='\\Uffffffff')]", NAMES)
    arguments.encode()
    assert json.loads(arguments)["a"] == "😀"


def test_an_argument_without_a_name_gets_its_number() -> None:
    assert at_every_split(LLAMA3, "[add(a=1, 5)]", NAMES) == [("call", "add", '{"a": 1, "arg1": 5}')]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "parameters": {"a": 1}}',
        '{"name": "add", "age": 3}',
        '{"name": "add"}',
        '{"city": "Lund", "list": [1, 2]}',
        "[1, 2, 3]\n[link](https://example.org)\n[ ] open",
        "[add]\n[add(1)]\n[subtract(a=1)]",
        f"An example: {CALL}",
        "text with [add(a=1)] in a line",
        "<|python_tag|>print(1)",
        "a <|python and <|",
        "{" * 50 + "\n[" * 50,
        "  ; leading; and trailing ;\n\n",
        "[" + "a" * 600 + "(a=1)]",
    ],
)
def test_what_only_looks_like_a_call_stays_text(text: str) -> None:
    assert at_every_split(LLAMA3, text, NAMES) == [("text", text)]


def test_an_argument_cut_short_is_left_out() -> None:
    assert at_every_split(LLAMA3, '[add(a=1, b="one tw', NAMES) == [("call", "add", '{"a": 1')]
    assert at_every_split(LLAMA3, '{"name": "add", "parameters": {"a": "one', NAMES) == [("call", "add", '{"a": "one')]
