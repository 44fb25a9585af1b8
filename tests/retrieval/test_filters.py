"""OpenAI's filters over attributes."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.retrieval.filters import compile_filter
from kvarn.wire.openai.errors import ApiError

FILE = {"year": 2024.0, "kind": "report", "draft": True}


def compare(key: str, kind: str, value: Any) -> dict[str, Any]:
    return {"key": key, "type": kind, "value": value}


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (compare("year", "eq", 2024), True),
        (compare("year", "ne", 2024), False),
        (compare("year", "gt", 2023.5), True),
        (compare("year", "gte", 2024), True),
        (compare("year", "lt", 2024), False),
        (compare("year", "lte", 2024), True),
        (compare("kind", "gt", "memo"), True),
        (compare("kind", "in", ["memo", "report"]), True),
        (compare("kind", "nin", ["memo", "report"]), False),
        (compare("year", "in", ["2024"]), False),
        (compare("draft", "eq", 1), False),
        (compare("draft", "eq", True), True),
        (compare("year", "gt", "2000"), False),
        (compare("absent", "eq", "x"), False),
        (compare("absent", "ne", "x"), True),
        (compare("absent", "nin", ["x"]), True),
        ({"type": "and", "filters": [compare("draft", "eq", True), compare("year", "lt", 2000)]}, False),
        ({"type": "or", "filters": [compare("draft", "eq", True), compare("year", "lt", 2000)]}, True),
        ({"type": "and", "filters": [{"type": "or", "filters": [compare("kind", "eq", "report")]}]}, True),
    ],
)
def test_a_filter_passes_the_files_that_it_describes(given: dict[str, Any], passes: bool) -> None:
    assert compile_filter(given)(FILE) is passes


NESTED: dict[str, Any] = compare("a", "eq", 1)
for _ in range(10):
    NESTED = {"type": "and", "filters": [NESTED]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (compare("a", "like", "x"), "'filters.type' must be one of eq"),
        (compare("a", "eq", ["x"]), "'filters.value' must be a text"),
        (compare("a", "eq", None), "'filters.value' must be a text"),
        (compare("a", "in", "x"), "'filters.value' must be a list"),
        ({"type": "eq", "value": 1}, "'filters.key' must be the name"),
        ({"type": "and", "filters": []}, "'filters.filters' must be a list"),
        ({"type": "or", "filters": [1]}, r"'filters.filters\[0\]' must be an object"),
        (NESTED, "at most 8 levels"),
        ({"type": "or", "filters": [compare("a", "eq", i) for i in range(200)]}, "128 parts"),
    ],
)
def test_a_filter_that_is_none_is_refused_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiError, match=told) as caught:
        compile_filter(given)
    assert (caught.value.status, caught.value.param) == (400, "filters")
