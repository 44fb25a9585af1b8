from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text.stop_strings import StopMatcher, StopStrings
from profiles import examples

WORDS = st.text(alphabet="ab", min_size=1, max_size=5)


def oracle(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The first position at which any stop string has been completed; of several there the longest."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include_stop else end - len(stop)], stop
    return text, None


def run(parts: list[str], stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(StopStrings(stops), include_stop=include_stop)
    shown, matched = "", None
    for part in parts:
        result = matcher.push(part)
        assert matched is None or result == ("", None)
        shown, matched = shown + result.text, matched or result.matched
    assert matcher.done == (matched is not None)
    return shown + matcher.flush(), matched


@settings(max_examples=examples(150))
@given(text=st.text(alphabet="abc", max_size=14), stops=st.lists(WORDS, max_size=4), include_stop=st.booleans())
def test_every_split_point_gives_what_a_naive_search_finds(text: str, stops: list[str], include_stop: bool) -> None:
    expected = oracle(text, stops, include_stop)
    assert run(list(text), stops, include_stop) == expected
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert run([text[:first], text[first:second], text[second:]], stops, include_stop) == expected


@settings(max_examples=examples(150))
@given(text=st.text(alphabet="ab", max_size=30), stops=st.lists(WORDS, min_size=1, max_size=4))
def test_just_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher, pushed, shown = StopMatcher(StopStrings(stops)), "", ""
    for character in text:
        pushed += character
        result = matcher.push(character)
        shown += result.text
        if result.matched:
            return
        tails = [length for stop in stops for length in range(len(stop)) if pushed.endswith(stop[:length])]
        assert shown == pushed[: len(pushed) - max(tails)]


def test_an_empty_stop_string_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(StopStrings(["a", ""]))


def test_sixteen_long_repetitive_stop_strings_are_found_in_a_long_text() -> None:
    stops = ["a" * (1008 + index) + "b" for index in range(16)]
    matcher = StopMatcher(StopStrings(stops))
    assert "".join(matcher.push("a" * 500).text for _ in range(20)) == "a" * (10_000 - 1023)
    assert matcher.push("b") == ("", stops[-1])
