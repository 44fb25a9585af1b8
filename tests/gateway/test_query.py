"""Query parameters: what a request may give, how lists and objects are written, and what is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from kvarn.gateway.errors import add_error_handlers
from kvarn.gateway.openapi import JsonRoute, extend_openapi
from kvarn.gateway.query import (
    BackwardQuery,
    Flag,
    ListQuery,
    OldestFirstQuery,
    OrderedOldestFirstQuery,
    OrderedQuery,
    QueryModel,
    Text,
    Texts,
    Time,
    check_query,
    list_answer,
    only_false,
)
from kvarn.gateway.record import new_record, record_of
from kvarn.store.repositories.pages import Page


class Range(BaseModel):
    gt: Time | None = None
    lte: Time | None = None


class Everything(QueryModel):
    name: Text | None = None
    colour: Literal["red", "green"] = "red"
    count: int = Field(5, ge=1, le=10, description="A number.")
    loud: Flag | None = None
    never: Annotated[Flag, only_false("nobody does that")] = False
    kinds: list[Literal["a", "b"]] = Field([], alias="kinds[]")
    words: Texts
    metadata: dict[Annotated[str, Field(max_length=64)], Text] = Field(default_factory=dict, max_length=2)
    at: Range = Range()


class Needed(QueryModel):
    start: int


class WithRecord:
    """Gives each request its record, as the gateway's middleware does."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        new_record(scope)

        async def send_with_warnings(message: Any) -> None:
            if message["type"] == "http.response.start":
                warnings = [(b"warning", warning.encode()) for warning in record_of(scope).reply.warnings]
                message["headers"] = [*message["headers"], *warnings]
            await send(message)

        await self.app(scope, receive, send_with_warnings)


QUERIES: dict[str, type[QueryModel]] = {
    "all": Everything,
    "needed": Needed,
    "list": ListQuery,
    "oldest": OldestFirstQuery,
    "ordered": OrderedQuery,
    "ordered-oldest": OrderedOldestFirstQuery,
    "backward": BackwardQuery,
}


def make_app() -> FastAPI:
    app = FastAPI()
    router = APIRouter(route_class=JsonRoute, dependencies=[Depends(check_query)])
    for prefix in ("/v1", "/v1/organization"):
        for name, model in QUERIES.items():

            async def read(query: Any) -> Any:
                cursor = None
                if isinstance(query, ListQuery):
                    page = query.cursor
                    cursor = [page.limit, page.after, page.before, page.ascending]
                return {"query": query.model_dump(), "cursor": cursor}

            read.__annotations__ = {"query": Annotated[model, Query()], "return": Any}
            router.get(f"{prefix}/{name}")(read)

        async def nothing() -> dict[str, str]:
            return {}

        router.get(f"{prefix}/none")(nothing)
    app.include_router(router)
    add_error_handlers(app)
    extend_openapi(app, [route for route in router.routes if isinstance(route, JsonRoute)], ())
    app.add_middleware(WithRecord)
    return app


APP = make_app()


async def ask(path: str, *given: tuple[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app=APP)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(f"{path}?{urlencode(given)}")


@pytest.mark.parametrize(
    ("field", "absent", "given", "value"),
    [
        ("name", None, [("name", "å")], "å"),
        ("colour", "red", [("colour", "green")], "green"),
        ("count", 5, [("count", "10")], 10),
        ("loud", None, [("loud", "false")], False),
        ("never", False, [("never", "false")], False),
        ("kinds", [], [("kinds[]", "a"), ("kinds[]", "b")], ["a", "b"]),
        ("kinds", [], [("kinds", "b")], ["b"]),
        ("words", [], [("words[]", "a"), ("words", "b")], ["b", "a"]),
        ("metadata", {}, [("metadata[a]", "1"), ("metadata[b c]", "2")], {"a": "1", "b c": "2"}),
        ("at", {"gt": None, "lte": None}, [("at[gt]", "7"), ("at[lte]", "0")], {"gt": 7, "lte": 0}),
    ],
)
async def test_a_parameter_is_read_or_has_its_default(field, absent, given, value):
    assert (await ask("/v1/all")).json()["query"][field] == absent
    assert (await ask("/v1/organization/all", *given)).json()["query"][field] == value


@pytest.mark.parametrize(
    ("path", "given", "param", "code"),
    [
        ("all", [("name", "")], "name", "invalid_value"),
        ("all", [("name", "a\0")], "name", "invalid_value"),
        ("all", [("name", "a" * 257)], "name", "invalid_value"),
        ("all", [("name", "a"), ("name[]", "b")], "name", "invalid_value"),
        ("all", [("colour", "blue")], "colour", "invalid_value"),
        ("all", [("count", "0")], "count", "invalid_value"),
        ("all", [("count", "11")], "count", "invalid_value"),
        ("all", [("count", "٣")], "count", "invalid_value"),
        ("all", [("count", "-1")], "count", "invalid_value"),
        ("all", [("count", "9" * 200)], "count", "invalid_value"),
        ("all", [("count", "1"), ("count", "2")], "count", "invalid_value"),
        ("needed", [], "start", "missing_required_parameter"),
        ("all", [("loud", "1")], "loud", "invalid_value"),
        ("all", [("never", "true")], "never", "unsupported_parameter"),
        ("all", [("kinds", "a"), ("kinds[]", "c")], "kinds", "invalid_value"),
        ("all", [("words", "a\0")], "words", "invalid_value"),
        ("all", [("metadata[a]", "")], "metadata[a]", "invalid_value"),
        ("all", [("metadata[a]", "1"), ("metadata[a]", "2")], "metadata[a]", "invalid_value"),
        ("all", [(f"metadata[{key}]", "1") for key in "abc"], "metadata", "invalid_value"),
        ("all", [("metadata", "1")], "metadata", "invalid_value"),
        ("all", [("metadata[]", "1")], "metadata", "invalid_value"),
        ("all", [(f"metadata[{'a' * 65}]", "1")], f"metadata[{'a' * 65}]", "invalid_value"),
        ("all", [("at[gt]", "soon")], "at[gt]", "invalid_value"),
        ("all", [("count[a]", "1")], "count[a]", "unknown_parameter"),
        ("needed", [("start", "1"), ("colour[]", "red")], "colour", "unknown_parameter"),
        ("list", [("limit", "101")], "limit", "invalid_value"),
        ("list", [("limit", "1"), ("limit", "2")], "limit", "invalid_value"),
        ("list", [("after", "")], "after", "invalid_value"),
        ("ordered", [("order", "random")], "order", "invalid_value"),
        ("list", [("before", "b")], "before", "unknown_parameter"),
        ("oldest", [("order", "asc")], "order", "unknown_parameter"),
        ("backward", [("after", "a"), ("before", "b")], "before", "invalid_value"),
    ],
)
async def test_what_is_wrong_or_unknown_is_refused_by_name(path, given, param, code):
    answer = await ask(f"/v1/organization/{path}", *given)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert error["message"]


async def test_an_unknown_parameter_is_ignored_with_a_warning_outside_administration():
    for path in ("/v1/none", "/v1/all"):
        answer = await ask(path, ("beta", "true"), ("ål\n", "1"))
        assert answer.headers.get_list("warning") == [
            "ignored unknown query parameter 'beta'",
            "ignored unknown query parameter '\\xe5l\\n'",
        ]
    many = await ask("/v1/all", *((f"field{index}", "1") for index in range(1000)))
    assert len(many.headers.get_list("warning")) == 8


async def test_many_unknown_parameters_do_not_hide_one_that_is_wrong():
    answer = await ask("/v1/none", *((f"field{index}", "1") for index in range(20)), ("order", "asc"))
    assert answer.json()["error"]["message"] == "Unrecognized query parameter supplied: order"


async def test_a_known_parameter_in_a_wrong_form_is_refused_everywhere():
    assert (await ask("/v1/all", ("metadata", "1"))).json()["error"]["param"] == "metadata"
    assert (await ask("/v1/all", ("count[eq]", "1"))).json()["error"]["param"] == "count[eq]"


async def test_an_operation_of_administration_without_parameters_takes_none():
    assert (await ask("/v1/organization/none")).status_code == 200
    answer = await ask("/v1/organization/none", ("beta", "true"), ("zeta", "1"))
    assert answer.json()["error"]["message"] == "Unrecognized query parameter supplied: beta"


@pytest.mark.parametrize(
    ("path", "given", "cursor"),
    [
        ("list", [], [20, None, None, False]),
        ("oldest", [], [20, None, None, True]),
        ("ordered", [("limit", "100"), ("after", "a"), ("order", "asc")], [100, "a", None, True]),
        ("ordered-oldest", [], [20, None, None, True]),
        ("ordered-oldest", [("order", "desc")], [20, None, None, False]),
        ("backward", [("before", "b")], [20, None, "b", False]),
    ],
)
async def test_a_request_chooses_place_size_and_order(path, given, cursor):
    assert (await ask(f"/v1/{path}", *given)).json()["cursor"] == cursor


def test_the_document_describes_name_default_and_style():
    parameters = APP.openapi()["paths"]["/v1/all"]["get"]["parameters"]
    described = {each["name"]: each for each in parameters}
    count = {"type": "integer", "minimum": 1, "maximum": 10, "default": 5}
    assert described["count"]["schema"].items() >= count.items()
    assert described["name"]["schema"]["type"] == "string" and "default" not in described["name"]["schema"]
    assert described["kinds[]"]["schema"]["items"]["enum"] == ["a", "b"]
    assert described["metadata"]["style"] == described["at"]["style"] == "deepObject"
    needed = APP.openapi()["paths"]["/v1/needed"]["get"]["parameters"][0]
    assert needed["required"] and "default" not in needed["schema"]


def test_the_answer_names_its_first_and_last_object():
    answer = list_answer(Page(["a", "b"], True), lambda name: {"id": name})
    assert (answer["first_id"], answer["last_id"], answer["has_more"]) == ("a", "b", True)
    assert list_answer(Page[str]([], False), lambda name: {"id": name})["first_id"] == ""
