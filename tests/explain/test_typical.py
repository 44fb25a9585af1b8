"""A typical request, and two side by side; words."""

from __future__ import annotations

import pytest

from kvarn.explain.typical import compare, shape_of, typical_of
from kvarn.explain.words import count, seconds


def test_a_typical_request_has_the_medians_of_parts():
    found = typical_of([{"queue": 1.0, "decode": 2.0}, {"decode": 4.0}, {"queue": 3.0, "decode": 3.0}])
    assert found is not None
    assert (found.requests, found.total_s, found.parts) == (3, 4.0, {"queue": 1.0, "decode": 3.0})
    assert typical_of([]) is None


def test_a_comparison_begins_with_the_largest_difference():
    found = compare({"queue": 5.0, "decode": 1.0}, {"decode": 1.5, "failover": 1.0})
    assert [(each.name, each.seconds, each.other_s) for each in found] == [
        ("queue", 5.0, 0.0),
        ("failover", 0.0, 1.0),
        ("decode", 1.0, 1.5),
    ]


def test_requests_of_similar_sizes_have_one_shape():
    assert shape_of(1000, 0, 100) == shape_of(1800, 900, 70) != shape_of(100, 0, 100)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0042, "4.2 ms"), (0.34, "340 ms"), (0.9996, "1.0 s"), (2.14, "2.1 s"), (99.6, "1 min 40 s"), (120, "2 min")],
)
def test_seconds_are_told_in_the_unit_that_fits(value, words):
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("number", "noun", "kind", "words"),
    [
        (1, "prompt", "6,200-token ", "a 6,200-token prompt"),
        (1, "prompt", "800-token ", "an 800-token prompt"),
        (1, "answer", "", "an answer"),
        (2, "prompt", "", "two prompts"),
        (1200, "token", "", "1,200 tokens"),
    ],
)
def test_numbers_are_told_as_one_says_them(number, noun, kind, words):
    assert count(number, noun, kind) == words
