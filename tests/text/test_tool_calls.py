from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text import TextDelta, ToolCallArguments, ToolCallStart, make_tool_call_parser
from kvarn.text.tools import HermesToolCallParser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'


def run(parts: list[str]) -> list[tuple[str, ...]]:
    """What a client would have put together: texts, and calls with their name and arguments."""
    ids = itertools.count()
    parser = HermesToolCallParser(lambda: f"call_{next(ids)}")
    events = [event for part in parts for event in parser.push(part)] + parser.flush()
    seen: list[tuple[str, ...]] = []
    calls = 0
    for event in events:
        match event:
            case TextDelta(text):
                assert text
                seen.append(("text", seen.pop()[1] + text if seen and seen[-1][0] == "text" else text))
            case ToolCallStart(index, call_id, name):
                assert (index, call_id) == (calls, f"call_{calls}")
                calls += 1
                seen.append(("call", name, ""))
            case ToolCallArguments(index, delta):
                assert index == calls - 1
                seen.append(("call", seen[-1][1], seen.pop()[2] + delta))
    return seen


def at_every_split(text: str) -> list[tuple[str, ...]]:
    whole = run([text])
    assert run(list(text)) == whole
    for cut in range(len(text) + 1):
        assert run([text[:cut], text[cut:]]) == whole
    return whole


def test_a_call_between_texts_is_taken_out() -> None:
    assert at_every_split(f"Let me add.\n{CALL}\nDone.") == [
        ("text", "Let me add."),
        ("call", "add", '{"a": 1, "b": "x"}'),
        ("text", "Done."),
    ]


def test_several_calls_are_numbered_and_the_space_between_them_is_dropped() -> None:
    assert at_every_split(f"{CALL}\n{CALL}\n") == [("call", "add", '{"a": 1, "b": "x"}')] * 2


def test_tags_and_quotes_inside_arguments_are_only_text() -> None:
    arguments = {"html": 'a "quoted" </tool_call> \\ <tool_call>', "unicode": "räksmörgås 🦉"}
    text = f'<tool_call>{{"name": "f", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}</tool_call>'
    [(_, name, found)] = at_every_split(text)
    assert (name, json.loads(found)) == ("f", arguments)
    assert "🦉" in found


def test_a_call_without_its_closing_tag_counts_when_it_is_complete() -> None:
    assert at_every_split('<tool_call>{"name": "f", "arguments": {}}') == [("call", "f", "{}")]


def test_arguments_may_be_missing_or_quoted_once_more() -> None:
    assert at_every_split('<tool_call>{"name": "f"}</tool_call>') == [("call", "f", "{}")]
    quoted = json.dumps(json.dumps({"a": 1}))
    assert at_every_split(f'<tool_call>{{"name": "f", "arguments": {quoted}}}</tool_call>') == [
        ("call", "f", '{"a": 1}')
    ]


@pytest.mark.parametrize(
    "text",
    [
        "plain text with < and <tool and </tool_call>",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>["f"]</tool_call> and more',
        ' \n<tool_call>\n{"name": "f", "argum',
        '<tool_call>{"name": "unclosed}</tool_call> on it goes',
        "  leading and trailing space \n\n",
        "<tool_call><tool_call>" + "[" * 3000,
    ],
)
def test_what_is_not_a_call_comes_out_as_it_went_in(text: str) -> None:
    parts = [text] if len(text) > 1000 else None
    assert (run(parts) if parts else at_every_split(text)) == [("text", text)]


def test_a_good_call_after_a_broken_one_is_still_found() -> None:
    text = f'<tool_call>{{"name": "unclosed}}</tool_call> so: {CALL}'
    seen = at_every_split(text)
    assert seen == [("text", '<tool_call>{"name": "unclosed}</tool_call> so:'), ("call", "add", '{"a": 1, "b": "x"}')]


def test_text_is_given_out_as_soon_as_no_call_can_begin_in_it() -> None:
    parser = make_tool_call_parser("hermes")
    assert parser.push("a < b") == [TextDelta("a < b")]
    assert parser.push(" <tool") == []
    assert parser.push("box>") == [TextDelta(" <toolbox>")]


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        CALL,
        '{"name": "f", "arguments": {}}',
        '"',
        "\\",
        "{",
        "}",
        " ",
        "\n",
        "x",
        "<",
        "</",
    ]
)


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(PIECES, max_size=7), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_no_split_changes_what_is_found_and_nothing_is_lost(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    bounds = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    whole = run([text])
    assert run([text[start:end] for start, end in itertools.pairwise(bounds)]) == whole
    assert run(list(text)) == whole
    if not any(kind == "call" for kind, *_ in whole):
        assert "".join(part[1] for part in whole) == text
    else:  # calls and white space aside, every character is still there
        calls = [part for part in whole if part[0] == "call"]
        left = "".join(part[1] for part in whole if part[0] == "text")
        assert len("".join(left.split())) <= len("".join(text.split())) - len(calls) * len('{"name":"f"}')


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="hermes"):
        make_tool_call_parser("nope")


def test_call_ids_are_unlike_each_other() -> None:
    starts = [
        event for _ in range(50) for event in make_tool_call_parser().push(CALL) if isinstance(event, ToolCallStart)
    ]
    assert len({start.id for start in starts}) == 50
    assert all(start.id.startswith("call_") for start in starts)
