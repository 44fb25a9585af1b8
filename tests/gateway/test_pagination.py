"""What a list may be asked for, and how its answer looks."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Flag, Texts
from kvarn.gateway.record import new_record
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.openai.errors import ApiError


def asking(**parameters: object) -> Request:
    query = urlencode({name.rstrip("_"): value for name, value in parameters.items()}, doseq=True)
    return asking_raw(query.encode())


def asking_raw(query: bytes) -> Request:
    scope = {"type": "http", "query_string": query, "headers": [], "path": "/v1/files"}
    new_record(scope)
    return Request(scope)


def test_what_a_request_does_not_say_is_the_lists_own() -> None:
    assert ListQuery().read(asking()) == Cursor(20)
    assert ListQuery(default_limit=5, ascending=True).read(asking()) == Cursor(5, ascending=True)


def test_a_request_chooses_place_size_and_order() -> None:
    assert ListQuery().read(asking(limit=100, after="a", order="asc")) == Cursor(100, "a", ascending=True)
    assert ListQuery(before=True).read(asking(before="b")) == Cursor(before="b")


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
    ],
)
def test_what_a_list_has_not_is_refused_by_name(parameters: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ListQuery().read(asking(**parameters))
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_both_directions_at_once_are_refused() -> None:
    with pytest.raises(ApiError, match="do not go together"):
        ListQuery(before=True).read(asking(after="a", before="b"))


def test_an_order_that_a_list_has_not_cannot_be_chosen() -> None:
    with pytest.raises(ApiError, match="order"):
        ListQuery(ordered=False).read(asking(order="asc"))


def test_a_list_has_its_own_filters_and_looks_at_them_too() -> None:
    kinds, everything = Texts("kind", "Of these kinds."), Flag("all", "All of them.", default=False)
    listed = ListQuery(kinds, everything)
    request = asking_raw(b"kind[]=a&kind=b&all=true")
    assert listed.read(request) == Cursor()
    assert sorted(kinds.read(request)) == ["a", "b"] and everything.read(request)
    with pytest.raises(ApiError, match="'all'"):
        listed.read(asking(all="yes"))


def test_the_answer_names_its_first_and_last_object() -> None:
    answer = list_answer(Page(["a", "b"], True), lambda name: {"id": name})
    assert (answer["first_id"], answer["last_id"], answer["has_more"]) == ("a", "b", True)
    assert list_answer(Page[str]([], False), lambda name: {"id": name})["first_id"] == ""
