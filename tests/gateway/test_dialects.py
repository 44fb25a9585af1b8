"""Which API's dialect a request is answered in, whatever goes wrong and however early."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvarn.wire.anthropic.dialect import ANTHROPIC
from kvarn.wire.dialects import dialect_of
from kvarn.wire.openai.dialect import OPENAI
from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

VERSION = {"anthropic-version": "2023-06-01"}
JSON = {"content-type": "application/json"}
ASK = b'{"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hej"}]}'


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1/messages", {}, ANTHROPIC),
        ("/v1/messages/batches/x", {}, ANTHROPIC),
        ("/v1/messagesque", {}, OPENAI),
        ("/v1/models", {}, OPENAI),
        ("/v1/models", VERSION, ANTHROPIC),
        ("/v1/nothing", VERSION, ANTHROPIC),
        ("/v1/chat/completions", VERSION, OPENAI),
    ],
)
def test_the_path_decides_then_the_clients_header(path, headers, dialect):
    assert dialect_of(path, [(name.encode(), value.encode()) for name, value in headers.items()]) is dialect


def check(answer: httpx.Response, status: int, kind: str) -> None:
    """It is an error in Anthropic's shape, with the id in body and headers."""
    body: Any = answer.json()
    assert answer.status_code == status, answer.text
    assert body["type"] == "error" and body["error"]["type"] == kind
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("request_", "status", "kind"),
    [
        ({"content": b"{", "headers": JSON}, 400, "invalid_request_error"),
        ({"content": b"", "headers": JSON}, 400, "invalid_request_error"),
        ({"json": {"model": "tiny", "max_tokens": 0, "messages": []}}, 400, "invalid_request_error"),
        ({"content": ASK, "headers": {"content-type": "text/plain"}}, 415, "invalid_request_error"),
        ({"content": b"x" * 300_000, "headers": JSON}, 413, "request_too_large"),
        ({"content": ASK, "headers": {**JSON, "x-long": "x" * 70_000}}, 431, "invalid_request_error"),
        ({"url": "/v1/messages/none", "content": ASK, "headers": JSON}, 404, "not_found_error"),
        ({"method": "GET"}, 405, "invalid_request_error"),
        ({"method": "GET", "url": "/v1/models/none", "headers": VERSION}, 404, "not_found_error"),
        ({"method": "GET", "url": "/v1/models?limit=0", "headers": VERSION}, 400, "invalid_request_error"),
        ({"method": "GET", "url": "/v1/none", "headers": VERSION}, 404, "not_found_error"),
    ],
)
def test_errors_from_before_the_route_and_in_it_are_anthropics(client, request_, status, kind):
    check(client.request(**{"method": "POST", "url": "/v1/messages", **request_}), status, kind)


def test_an_answer_has_its_id_in_both_headers(client):
    answer = client.post("/v1/messages", content=ASK, headers={**JSON, "x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine"
    assert "request-id" not in client.get("/v1/models").headers


def test_anthropics_client_lists_and_reads_models(claude):
    page = claude.models.list()
    assert [model.id for model in page] == ["tiny"] and (page.has_more, page.first_id) == (False, "tiny")
    model = claude.models.retrieve("tiny")
    assert (model.type, model.display_name, model.max_input_tokens) == ("model", "tiny", 512)
    assert model.created_at.year > 2000
    assert claude.models.list(after_id="tiny").data == []
    assert [each.id for each in claude.models.list(limit=1)] == ["tiny"]
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("none")
    with pytest.raises(anthropic.BadRequestError):
        claude.models.list(after_id="none")


def test_openais_client_gets_all_models_in_openais_shape(client):
    listed = client.get("/v1/models?limit=1").json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["tiny", "vec"]
