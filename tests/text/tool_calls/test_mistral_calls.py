"""Calls as Mistral's models write them, old and new."""

from __future__ import annotations

import pytest

from kvarn.text.tool_calls.events import ToolCallStart
from kvarn.text.tool_calls.formats import MISTRAL
from tool_events import at_every_split

NAMES = {"add", "now"}
OBJECT = '{"name": "add", "arguments": {"a": 1, "b": "x"}}'
ADDED = ("call", "add", '{"a": 1, "b": "x"}')
NOW = ("call", "now", "{}")


@pytest.mark.parametrize(
    "text",
    [
        f"[TOOL_CALLS] [{OBJECT}]",
        f'[TOOL_CALLS][{OBJECT[:-1]}, "id": "abc123def"}}]',
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "x"}',
        '[TOOL_CALLS] add{"a": 1, "b": "x"}',
        '[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"a": 1, "b": "x"}',
    ],
)
def test_a_call_has_several_forms(text: str) -> None:
    assert at_every_split(MISTRAL, text, NAMES) == [ADDED]


def test_calls_follow_each_other_and_texts() -> None:
    now = '{"name": "now", "arguments": {}}'
    assert at_every_split(MISTRAL, f"Well. [TOOL_CALLS] [{OBJECT}, {now}] So.", NAMES) == [
        ("text", "Well."),
        ADDED,
        NOW,
        ("text", "So."),
    ]
    text = '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "x"}[TOOL_CALLS]now[ARGS]{} So.'
    assert at_every_split(MISTRAL, text, NAMES) == [ADDED, NOW, ("text", "So.")]


@pytest.mark.parametrize(
    "text",
    [
        "a [TOOL and [TOOL_CALLS] nothing",
        "[TOOL_CALLS] [1, 2]",
        '[TOOL_CALLS] [{"name": "subtract", "arguments": {}}]',
        "[TOOL_CALLS]subtract[ARGS]{}",
        "[TOOL_CALLS]add, then " + "x" * 300,
        "[TOOL_CALLS]" + "x" * 300 + "{}",
        "[TOOL_CALLS]",
    ],
)
def test_what_only_looks_like_a_call_stays_text(text: str) -> None:
    assert at_every_split(MISTRAL, text, NAMES) == [("text", text)]


def test_a_broken_call_later_in_a_list_is_text() -> None:
    assert at_every_split(MISTRAL, f"[TOOL_CALLS] [{OBJECT}, 3]", NAMES) == [ADDED, ("text", ", 3]")]


def test_ids_are_what_the_templates_take() -> None:
    start = MISTRAL.make_parser(NAMES).push("[TOOL_CALLS]now[ARGS]{}")[0]
    assert isinstance(start, ToolCallStart) and len(start.id) == 9 and start.id.isalnum()
    assert MISTRAL.shown_id(start.id) == start.id
    foreign = MISTRAL.shown_id("call_0123456789")
    assert len(foreign) == 9 and foreign.isalnum() and foreign == MISTRAL.shown_id("call_0123456789")
    assert foreign != MISTRAL.shown_id("call_0123456780")
