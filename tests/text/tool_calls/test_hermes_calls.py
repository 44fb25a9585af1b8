"""Calls as Hermes, Qwen and the demo model write them."""

from __future__ import annotations

import json

import pytest

from kvarn.text.tool_calls.events import TextDelta, ToolCallArguments, ToolCallStart
from kvarn.text.tool_calls.formats import HERMES
from tool_events import at_every_split, run

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'
ADDED = ("call", "add", '{"a": 1, "b": "x"}')


def test_a_call_between_texts_is_taken_out() -> None:
    assert at_every_split(HERMES, f"Let me add.\n{CALL}\nDone.") == [("text", "Let me add."), ADDED, ("text", "Done.")]


def test_several_calls_are_numbered_and_the_space_between_them_is_dropped() -> None:
    assert at_every_split(HERMES, f"{CALL}\n{CALL}\n") == [ADDED, ADDED]


def test_arguments_are_given_out_while_they_are_written() -> None:
    parser = HERMES.make_parser({"add"})
    assert parser.push('<tool_call>\n{"name": "add", "arguments": ') == []
    begun = parser.push('{"a"')
    assert [type(event) for event in begun] == [ToolCallStart, ToolCallArguments]
    assert parser.push(': "<hej') == [ToolCallArguments(0, ': "<hej')]
    assert parser.push(" ") == [ToolCallArguments(0, " ")]
    assert parser.push('då"}') == [ToolCallArguments(0, 'då"}')]
    assert parser.push("}\n</tool_call>") == parser.flush() == []


def test_tags_and_quotes_inside_arguments_are_only_text() -> None:
    arguments = {"html": 'a "quoted" </tool_call> \\ <tool_call>', "unicode": "räksmörgås 🦉"}
    text = f'<tool_call>{{"name": "f", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}</tool_call>'
    [(_, name, found)] = at_every_split(HERMES, text)
    assert (name, json.loads(found)) == ("f", arguments)
    assert "🦉" in found


def test_a_call_without_its_closing_tag_or_bracket_counts() -> None:
    assert at_every_split(HERMES, '<tool_call>{"name": "f", "arguments": {}}') == [("call", "f", "{}")]
    assert at_every_split(HERMES, '<tool_call>{"name": "f", "arguments": {}</tool_call> so') == [
        ("call", "f", "{}"),
        ("text", "so"),
    ]


def test_arguments_may_be_missing_or_come_first_or_be_quoted_once_more() -> None:
    assert at_every_split(HERMES, '<tool_call>{"name": "f"}</tool_call>') == [("call", "f", "{}")]
    quoted = json.dumps(json.dumps({"a": 1}))
    for inside in (f'"name": "f", "arguments": {quoted}', '"arguments": {"a": 1}, "name": "f"'):
        assert at_every_split(HERMES, f"<tool_call>{{{inside}}}</tool_call>") == [("call", "f", '{"a": 1}')]


def test_what_follows_the_arguments_in_the_object_is_passed_over() -> None:
    text = '<tool_call>{"type": "function", "name": "f", "arguments": {"a": 1}, "id": "}</x>"}</tool_call>ok'
    assert at_every_split(HERMES, text) == [("call", "f", '{"a": 1}'), ("text", "ok")]


@pytest.mark.parametrize(
    "text",
    [
        "plain text with < and <tool and </tool_call>",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"city": "f", "arguments": {}}</tool_call>',
        '<tool_call>["f"]</tool_call> and more',
        ' \n<tool_call>\n{"name": "f", "argum',
        '<tool_call>{"name": "unclosed}</tool_call> on it goes',
        "  leading and trailing space \n\n",
        "<tool_call><tool_call>" + "[" * 300,
        '<tool_call>{"name": ' + " " * 600 + '"f", "arguments": {}}',
    ],
)
def test_what_is_not_a_call_comes_out_as_it_went_in(text: str) -> None:
    assert at_every_split(HERMES, text) == [("text", text)]


def test_a_name_that_was_not_offered_is_no_call() -> None:
    assert at_every_split(HERMES, CALL, {"multiply"}) == [("text", CALL)]
    assert at_every_split(HERMES, CALL, {"add", "multiply"}) == [ADDED]


def test_arguments_that_are_no_json_come_as_they_were_written() -> None:
    for written in ('{"a": NaN}', '{"a": [}', '{"a": "cut o', "{'a': 1}"):
        seen = at_every_split(HERMES, f'<tool_call>{{"name": "f", "arguments": {written}')
        assert seen == [("call", "f", written)]


def test_a_good_call_after_a_broken_one_is_still_found() -> None:
    text = f'<tool_call>{{"name": "unclosed}}</tool_call> so: {CALL}'
    assert at_every_split(HERMES, text) == [("text", '<tool_call>{"name": "unclosed}</tool_call> so:'), ADDED]


def test_text_is_given_out_as_soon_as_no_call_can_begin_in_it() -> None:
    parser = HERMES.make_parser()
    assert parser.push("a < b") == [TextDelta("a < b")]
    assert parser.push(" <tool") == []
    assert parser.push("box>") == [TextDelta(" <toolbox>")]


def test_call_ids_are_unlike_each_other() -> None:
    starts = [event for _ in range(50) for event in HERMES.make_parser().push(CALL) if isinstance(event, ToolCallStart)]
    assert len({start.id for start in starts}) == 50
    assert all(start.id.startswith("call_") for start in starts)


def test_a_long_answer_without_calls_is_read_once() -> None:
    assert run(HERMES, ["word < "] * 20_000) == [("text", "word < " * 20_000)]
