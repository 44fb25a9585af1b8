"""What a query's parameters may be: read and described by the same declaration."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import jsonschema_rs
import pytest
from starlette.requests import Request

from kvarn.gateway.parameters import REQUIRED, Entries, Flag, Number, Parameter, Text, Texts, TimeRange
from kvarn.gateway.query import Query, check_query
from kvarn.gateway.record import new_record, record_of
from kvarn.wire.openai.errors import ApiError

NAME = Text("name", "A name.", default=None)
COLOUR = Text("colour", "A colour.", "red", choices=("red", "green"))
COUNT = Number("count", "A number.", 5, minimum=1, maximum=10)
START: Number[int] = Number("start", "Where to begin.", REQUIRED)
LOUD = Flag("loud", "Whether to shout.", default=None)
NEVER = Flag("never", "Cannot be.", default=False, refused="nobody does that")
KINDS = Texts("kinds[]", "Of these kinds.", choices=("a", "b"))
METADATA = Entries("metadata", "With these entries.", most=2)
TIMES = TimeRange("at", "Between these.")


def asking(*given: tuple[str, str], path: str = "/v1/organization/x") -> Request:
    scope = {"type": "http", "path": path, "query_string": urlencode(given).encode(), "headers": []}
    new_record(scope)
    return Request(scope)


@pytest.mark.parametrize(
    ("parameter", "absent", "given", "value"),
    [
        (NAME, None, [("name", "å")], "å"),
        (COLOUR, "red", [("colour", "green")], "green"),
        (COUNT, 5, [("count", "10")], 10),
        (LOUD, None, [("loud", "false")], False),
        (NEVER, False, [("never", "false")], False),
        (KINDS, (), [("kinds[]", "a")], ("a",)),
        (KINDS, (), [("kinds", "b")], ("b",)),
        (METADATA, {}, [("metadata[a]", "1"), ("metadata[b c]", "2")], {"a": "1", "b c": "2"}),
        (TIMES, {}, [("at[gt]", "7"), ("at[lte]", "0")], {"gt": 7, "lte": 0}),
    ],
)
def test_a_parameter_is_read_or_has_its_default(
    parameter: Parameter, absent: object, given: list[tuple[str, str]], value: object
) -> None:
    assert parameter.read(asking()) == absent
    assert parameter.read(asking(*given)) == value
    Query(parameter).check(asking(*given))


@pytest.mark.parametrize(
    ("parameter", "given", "param", "code"),
    [
        (NAME, [("name", "")], "name", "invalid_value"),
        (NAME, [("name", "a\0")], "name", "invalid_value"),
        (NAME, [("name", "a" * 257)], "name", "invalid_value"),
        (NAME, [("name", "a"), ("name[]", "b")], "name", "invalid_value"),
        (COLOUR, [("colour", "blue")], "colour", "invalid_value"),
        (COUNT, [("count", "0")], "count", "invalid_value"),
        (COUNT, [("count", "11")], "count", "invalid_value"),
        (COUNT, [("count", "٣")], "count", "invalid_value"),
        (COUNT, [("count", "-1")], "count", "invalid_value"),
        (COUNT, [("count", "9" * 200)], "count", "invalid_value"),
        (START, [], "start", "missing_required_parameter"),
        (LOUD, [("loud", "1")], "loud", "invalid_value"),
        (NEVER, [("never", "true")], "never", "unsupported_parameter"),
        (KINDS, [("kinds", "a"), ("kinds[]", "c")], "kinds", "invalid_value"),
        (METADATA, [("metadata[a]", "")], "metadata[a]", "invalid_value"),
        (METADATA, [("metadata[a]", "1"), ("metadata[a]", "2")], "metadata[a]", "invalid_value"),
        (METADATA, [(f"metadata[{key}]", "1") for key in "abc"], "metadata", "invalid_value"),
        (METADATA, [("metadata", "1")], "metadata", "unknown_parameter"),
        (METADATA, [("metadata[]", "1")], "metadata", "unknown_parameter"),
        (METADATA, [("metadata[\0]", "1")], "metadata[\0]", "unknown_parameter"),
        (METADATA, [(f"metadata[{'a' * 65}]", "1")], f"metadata[{'a' * 65}]", "unknown_parameter"),
        (TIMES, [("at[gt]", "soon")], "at[gt]", "invalid_value"),
        (TIMES, [("at[eq]", "1")], "at[eq]", "unknown_parameter"),
        (NAME, [("colour[]", "red")], "colour", "unknown_parameter"),
    ],
)
def test_what_is_wrong_or_unknown_is_refused_by_name(
    parameter: Parameter, given: list[tuple[str, str]], param: str, code: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        Query(parameter).check(asking(*given))
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, param, code)


def test_an_unknown_parameter_is_ignored_with_a_warning_outside_administration() -> None:
    request = asking(("beta", "true"), ("ål\n", "1"), path="/v1/files")
    check_query(request)
    assert record_of(request.scope).warnings == [
        "ignored unknown query parameter 'beta'",
        "ignored unknown query parameter '\\xe5l\\n'",
    ]
    many = asking(*((f"field{index}", "1") for index in range(1000)), path="/v1/files")
    Query(NAME).check(many)
    assert len(record_of(many.scope).warnings) == 8


def test_many_unknown_parameters_do_not_hide_one_that_is_wrong() -> None:
    with pytest.raises(ApiError, match="Unrecognized query parameter supplied: order"):
        check_query(asking(*((f"field{index}", "1") for index in range(20)), ("order", "asc"), path="/v1/files"))


@pytest.mark.parametrize(("parameter", "key"), [(METADATA, "metadata"), (TIMES, "at[eq]")])
def test_a_known_parameter_in_a_wrong_form_is_refused_everywhere(parameter: Parameter, key: str) -> None:
    with pytest.raises(ApiError, match="Unrecognized query parameter supplied"):
        Query(parameter).check(asking((key, "1"), path="/v1/files"))


def test_an_operation_of_administration_without_parameters_takes_none() -> None:
    check_query(asking())
    with pytest.raises(ApiError, match="Unrecognized query parameter supplied: beta"):
        check_query(asking(("beta", "true"), ("zeta", "1")))


@pytest.mark.parametrize(
    ("parameter", "right", "wrong"),
    [
        (NAME, ["a"], ["", "a" * 257]),
        (COLOUR, ["red"], ["blue"]),
        (COUNT, [1, 10], [0, 11, "3"]),
        (LOUD, [True, False], ["true"]),
        (NEVER, [False], [True]),
        (KINDS, [[], ["a", "b"]], ["a", ["c"]]),
        (METADATA, [{}, {"a": "1"}], [{"a": 1}, {"a" * 65: "1"}, {"a": "1", "b": "1", "c": "1"}]),
        (TIMES, [{"gt": 1}], [{"eq": 1}, {"gt": "1"}]),
    ],
)
def test_the_schema_says_what_is_taken(parameter: Parameter, right: list[Any], wrong: list[Any]) -> None:
    check = jsonschema_rs.Draft202012Validator(parameter.described["schema"])
    assert [check.is_valid(value) for value in right] == [True] * len(right)
    assert [check.is_valid(value) for value in wrong] == [False] * len(wrong)


def test_the_description_has_name_default_and_style() -> None:
    assert COUNT.described == {
        "name": "count",
        "in": "query",
        "description": "A number.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5},
    }
    assert START.described["required"] and "default" not in START.described["schema"]
    assert "required" not in NAME.described and "default" not in NAME.described["schema"]
    assert KINDS.described["name"] == "kinds[]"
    assert NEVER.described["description"] == "Cannot be. `true` is not supported: nobody does that."
    assert METADATA.described["style"] == TIMES.described["style"] == "deepObject"
