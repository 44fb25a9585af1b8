"""Reasoning told from content: the same however the text is cut, and nothing lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text.reasoning.formats import FORMATS, GPT_OSS, GRANITE, MISTRAL, QWEN3, ReasoningFormat
from kvarn.text.reasoning.splitter import Reasoning, ReasoningPhase, TagSplitter, joined
from profiles import examples
from tool_events import cut_at

BEFORE, INSIDE, AFTER = ReasoningPhase

FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"

PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "[THINK]", "[/THINK]", "Here is my thought process:", "Here is my response:"),
        *("<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.f", "<|message|>"),
        *("<|end|>", "<|call|>", "<|constrain|>json", "to=", ANALYSIS, FINAL, "x" * 260),
        *("<", "</", "<|", "Here is my ", "[", " ", "\n", "so", "é", "{}"),
    ]
)
CUTS = st.lists(st.integers(0, 500), max_size=8)


def split(kind: ReasoningFormat, parts: Sequence[str], phase: ReasoningPhase = BEFORE) -> list[tuple[str, str]]:
    """`(kind, text)` of what comes of a text that arrives in these parts, neighbours of a kind joined."""
    splitter = kind.splitter(phase)
    seen: list[tuple[str, str]] = []
    for part in [each for text in parts for each in splitter.push(text)] + splitter.flush():
        name, text = ("reasoning", part.text) if isinstance(part, Reasoning) else ("content", part)
        assert text
        seen.append((name, seen.pop()[1] + text if seen and seen[-1][0] == name else text))
    return seen


def at_every_split(kind: ReasoningFormat, text: str, phase: ReasoningPhase = BEFORE) -> list[tuple[str, str]]:
    whole = split(kind, [text], phase)
    assert split(kind, list(text), phase) == whole
    for cut in range(len(text) + 1):
        assert split(kind, [text[:cut], text[cut:]], phase) == whole, (text[:cut], text[cut:])
    return whole


@pytest.mark.parametrize(
    ("text", "phase", "expected"),
    [
        ("<think>\nIt is noon.\n</think>\n\nHello.", BEFORE, [("reasoning", "It is noon."), ("content", "Hello.")]),
        ("\n<think>a</think>b", BEFORE, [("reasoning", "a"), ("content", "b")]),
        ("It is noon.\n</think>\n\nHello.", INSIDE, [("reasoning", "It is noon."), ("content", "Hello.")]),
        ("<think>\n\n</think>\n\nHello.", BEFORE, [("content", "Hello.")]),
        (" Hello.\n", BEFORE, [("content", " Hello.\n")]),
        ("Hello <think>no</think>", BEFORE, [("content", "Hello <think>no</think>")]),
        ("\nHello.", AFTER, [("content", "\nHello.")]),
        ("<think>a < b and </thin", BEFORE, [("reasoning", "a < b and </thin")]),
        ("<thi", BEFORE, [("content", "<thi")]),
        ("<think>a</think>\n", BEFORE, [("reasoning", "a")]),
        ("<think>a</think>b</think>c", BEFORE, [("reasoning", "a"), ("content", "b</think>c")]),
    ],
)
def test_tags(text: str, phase: ReasoningPhase, expected: list[tuple[str, str]]) -> None:
    assert at_every_split(QWEN3, text, phase) == expected


def test_words_can_be_tags() -> None:
    text = "Here's my thought process: It is noon. Here is my response:\nHello."
    assert at_every_split(GRANITE, text) == [("reasoning", "It is noon."), ("content", "Hello.")]
    assert at_every_split(MISTRAL, "[THINK]a[/THINK]b") == [("reasoning", "a"), ("content", "b")]


CALL = " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}It is noon.<|end|>{FINAL}Hello.", [("reasoning", "It is noon."), ("content", "Hello.")]),
        (f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{FINAL}c", [("reasoning", "a\nb"), ("content", "c")]),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", [("content", "{}")]),
        (f"{ANALYSIS}a<|end|><|start|>assistant{CALL}", [("reasoning", "a"), ("content", f"<|start|>assistant{CALL}")]),
        (CALL, [("content", CALL)]),
        (
            f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{ANALYSIS}a<|end|>{FINAL}b",
            [("content", "I look."), ("reasoning", "a"), ("content", "\nb")],
        ),
        (f"{ANALYSIS}cut of", [("reasoning", "cut of")]),
        (f"{ANALYSIS}a<|end|><|start|>assistant<|channel|>fin", [("reasoning", "a")]),
        (f"{ANALYSIS}a{FINAL}b", [("reasoning", "a"), ("content", "b")]),
        ("No header <|at all", [("content", "No header <|at all")]),
        (f"{ANALYSIS}a<|end|>b", [("reasoning", "a"), ("content", "b")]),
    ],
)
def test_channels(text: str, expected: list[tuple[str, str]]) -> None:
    assert at_every_split(GPT_OSS, text) == expected


def test_what_a_prompt_has_begun_goes_on_in_harmony() -> None:
    assert at_every_split(GPT_OSS, "lo.<|end|>", AFTER) == [("content", "lo.")]
    assert at_every_split(GPT_OSS, f" noon.<|end|>{FINAL}Hi", INSIDE) == [("reasoning", " noon."), ("content", "Hi")]
    assert at_every_split(GPT_OSS, "f <|constrain|>json<|message|>{", AFTER) == [
        ("content", "f <|constrain|>json<|message|>{")
    ]


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
@settings(max_examples=examples(120))
@given(pieces=st.lists(PIECES, max_size=9), cuts=CUTS, phase=st.sampled_from(list(ReasoningPhase)))
def test_no_split_changes_what_comes_out(kind, pieces, cuts, phase):
    text = "".join(pieces)
    whole = split(kind, [text], phase)
    assert split(kind, cut_at(text, cuts), phase) == whole
    assert split(kind, list(text), phase) == whole


WORDS = st.text(st.sampled_from("ab <\n/tE"), max_size=12)


@settings(max_examples=examples(120))
@given(reasoning=WORDS, content=WORDS, cuts=CUTS)
def test_only_white_space_around_tags_is_lost(reasoning: str, content: str, cuts: list[int]) -> None:
    text = f"<think>{reasoning}</think>{content}"
    expected = [("reasoning", reasoning.strip()), ("content", content.lstrip())]
    assert split(QWEN3, cut_at(text, cuts)) == [each for each in expected if each[1]]


@settings(max_examples=examples(60))
@given(messages=st.lists(st.tuples(st.booleans(), WORDS), max_size=4), cuts=CUTS)
def test_no_character_of_a_channel_is_lost(messages: list[tuple[bool, str]], cuts: list[int]) -> None:
    text = "<|end|><|start|>assistant".join(
        (ANALYSIS if reasons else FINAL[18:]) + words for reasons, words in messages
    )
    expected: Any = {"reasoning": [], "content": []}
    for reasons, words in messages:
        if words:
            expected["reasoning" if reasons else "content"].append(words)
    seen = split(GPT_OSS, cut_at(text, cuts))
    for name, texts in expected.items():
        assert "".join(part for kind, part in seen if kind == name) == "\n".join(texts)


@pytest.mark.parametrize(
    ("text", "phase", "expected"),
    [
        ("<thi", ReasoningPhase.BEFORE, []),
        ("a < b <thi", ReasoningPhase.BEFORE, [("content", "a < b <thi")]),
        ("So </thi", ReasoningPhase.INSIDE, [("reasoning", "So ")]),
        ("<think>So <", ReasoningPhase.BEFORE, [("reasoning", "So ")]),
        ("a <", ReasoningPhase.AFTER, [("content", "a <")]),
    ],
)
def test_the_beginning_of_a_tag_at_the_end_of_a_cut_off_answer_is_not_shown(text, phase, expected):
    for parts in ([text], list(text)):
        splitter = TagSplitter(phase, ("<think>",), ("</think>",))
        found = [each for part in parts for each in splitter.push(part)] + splitter.flush(cut_off=True)
        assert [
            ("content", part) if isinstance(part, str) else ("reasoning", part.text) for part in joined(found)
        ] == expected


def test_words_that_begin_a_tag_stay_at_the_end_of_a_cut_off_answer() -> None:
    splitter = TagSplitter(ReasoningPhase.BEFORE, ("Here is my thought process:",), ("Here is my response:",))
    assert splitter.push("Here is my") + splitter.flush(cut_off=True) == ["Here is my"]
