"""What a list may be asked for, and how its answer looks."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from kvarn.gateway.pagination import list_answer, query_flag, query_values, read_cursor
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.openai.errors import ApiError


def asking(**parameters: object) -> Request:
    query = urlencode({name.rstrip("_"): value for name, value in parameters.items()}, doseq=True)
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def test_what_a_request_does_not_say_is_the_lists_own() -> None:
    assert read_cursor(asking()) == Cursor(20)
    assert read_cursor(asking(), default_limit=5, ascending=True) == Cursor(5, ascending=True)


def test_a_request_chooses_place_size_and_order() -> None:
    assert read_cursor(asking(limit=100, after="a", order="asc")) == Cursor(100, "a", ascending=True)
    assert read_cursor(asking(before="b"), before=True) == Cursor(before="b")


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "٣"}, "limit"),
        ({"limit": "9" * 99}, "limit"),
        ({"limit": [1, 2]}, "limit"),
        ({"after": ""}, "after"),
        ({"after": "a\0"}, "after"),
        ({"after": "a" * 257}, "after"),
        ({"order": "random"}, "order"),
        ({"before": "b"}, "before"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_a_list_has_not_is_refused_by_name(parameters: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        read_cursor(asking(**parameters))
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_both_directions_at_once_are_refused() -> None:
    with pytest.raises(ApiError, match="do not go together"):
        read_cursor(asking(after="a", before="b"), before=True)


def test_filters_are_read_in_both_spellings() -> None:
    request = Request({"type": "http", "query_string": b"kind[]=a&kind=b&all=true", "headers": []})
    assert sorted(query_values(request, "kind")) == ["a", "b"]
    assert query_flag(request, "all") and not query_flag(request, "some")
    assert read_cursor(request, filters=("kind", "all")) == Cursor()


def test_the_answer_names_its_first_and_last_object() -> None:
    answer = list_answer(Page(["a", "b"], True), lambda name: {"id": name})
    assert (answer["first_id"], answer["last_id"], answer["has_more"]) == ("a", "b", True)
    assert list_answer(Page[str]([], False), lambda name: {"id": name})["first_id"] == ""
