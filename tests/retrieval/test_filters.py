"""OpenAI's filters over attributes."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.retrieval.filters import compile_filter

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
