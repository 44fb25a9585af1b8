"""Tools of type `web_search`, with a search server of the project's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from openai.types.responses.response_function_web_search import ResponseFunctionWebSearch

from kvarn.answers.errors import ApiError
from kvarn.config.tools import ToolsConfig
from kvarn.store.owner import Owner, Principal
from kvarn.tools.http_client import SafeHttp
from kvarn.tools.server import ToolServer
from kvarn.tools.types import ToolResult
from kvarn.tools.web_search import WebSearchProvider, pages_of
from mcp_servers import call, context
from scripted_server import ScriptedServer, always, scripted_server

SEARXNG = {
    "results": [
        {"url": "https://a.example/1", "title": "One", "content": "First."},
        {"url": "https://sub.b.example/2", "title": "Two", "content": "Second."},
        {"url": "javascript:alert(1)", "title": "Bad", "content": "Third."},
        {"url": "https://b.example.evil/3", "title": "", "content": ""},
    ]
}


@dataclass
class OneServer:
    server: ToolServer | None

    async def of_kind(self, owner: Owner, kind: str) -> ToolServer | None:
        return self.server


async def search(
    server: ScriptedServer, query: str = "grün & blau", path: str = "/search?format=json", **entry: Any
) -> ToolResult:
    known = ToolServer("web", "web_search", url=server.url + path, require_approval="never")
    http = SafeHttp(ToolsConfig(allow_private=[server.place]))
    provider = WebSearchProvider(cast(Any, OneServer(known)), http)
    asked = context(Principal(Owner("o", "p")))
    (tool,) = (await provider.open(asked, {"type": "web_search", **entry})).tools
    assert (tool.definition.name, tool.item_type, tool.needs_approval) == ("web_search", "web_search_call", False)
    return await tool.call(asked, call("web_search", json.dumps({"query": query})))


async def test_pages_are_quoted_with_their_addresses_and_told_as_sources() -> None:
    async with scripted_server(always(json.dumps(SEARXNG).encode(), "content-type: application/json")) as server:
        result = await search(server)
        assert server.asked[0].head.startswith("GET /search?format=json&q=gr%C3%BCn+%26+blau ")
    urls = ["https://a.example/1", "https://sub.b.example/2", "https://b.example.evil/3"]
    assert [quote.url for quote in result.quotes] == urls
    assert (result.quotes[0].filename, result.quotes[0].text) == ("One", "First.")
    item = {"id": "ws_1", "type": "web_search_call", "status": result.status, **result.item}
    action = ResponseFunctionWebSearch.model_validate(item).action
    assert action.type == "search" and action.query == "grün & blau"
    assert [source.url for source in action.sources or ()] == urls


async def test_a_query_may_have_its_place_in_the_address() -> None:
    async with scripted_server(always(b'{"results": []}')) as server:
        result = await search(server, "a/b?c", path="/find/{query}/json")
        assert server.asked[0].head.startswith("GET /find/a%2Fb%3Fc/json ")
    assert (result.output, list(result.quotes)) == ("Nothing was found.", [])


async def test_domains_are_those_that_the_request_allows() -> None:
    async with scripted_server(always(json.dumps(SEARXNG).encode())) as server:
        allowed = await search(server, filters={"allowed_domains": ["b.example"]})
        blocked = await search(server, filters={"blocked_domains": ["b.example"]}, search_context_size="high")
    assert [quote.url for quote in allowed.quotes] == ["https://sub.b.example/2"]
    assert [quote.url for quote in blocked.quotes] == ["https://a.example/1", "https://b.example.evil/3"]


@pytest.mark.parametrize(("status", "body"), [("500 x", b"{}"), ("200 OK", b"<html>"), ("200 OK", b"[" * 100_000)])
async def test_a_search_that_fails_is_a_result(status: str, body: bytes) -> None:
    async with scripted_server(always(body, status=status)) as server:
        result = await search(server)
    assert result.status == "failed"
    assert result.item["action"]["sources"] == []


def test_answers_of_other_search_servers_are_read() -> None:
    page = {"link": "https://a/", "name": "A", "snippet": "Text"}
    for answer in ({"items": [page]}, {"web": {"results": [page]}}, {"organic": [page]}, {"data": [page]}):
        (found,) = pages_of(answer)
        assert (found.url, found.title, found.text) == ("https://a/", "A", "Text")
    for nothing in ({}, [], None, {"results": {}}, {"results": [1, {"url": 1}]}):
        assert list(pages_of(nothing)) == []


async def test_without_a_search_server_nothing_is_opened_and_bad_entries_are_refused() -> None:
    asked = context(Principal(Owner("o", "p")))
    nobody = WebSearchProvider(cast(Any, OneServer(None)), SafeHttp(ToolsConfig()))
    opened = await nobody.open(asked, {"type": "web_search"})
    assert (list(opened.tools), list(opened.items)) == ([], [])
    somebody = WebSearchProvider(cast(Any, OneServer(ToolServer("web", "web_search"))), SafeHttp(ToolsConfig()))
    with pytest.raises(ApiError, match="search_context_size"):
        await somebody.open(asked, {"type": "web_search", "search_context_size": "huge"})
