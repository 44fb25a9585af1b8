"""Tools of type `web_search`: the model asks a search server that the project or the operator named.

The server answers `GET URL?q=QUERY` with JSON: SearXNG's (`results` of `url`, `title`, `content`) and those of like
APIs are read. A URL that holds `{query}` has the query put there instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import httpx

from kvarn.store.owner import Owner
from kvarn.tools.http_client import SafeHttp
from kvarn.tools.http_tools import exchange
from kvarn.tools.registered import ToolServers
from kvarn.tools.results import arguments_of, failed
from kvarn.tools.server import ToolCallError, ToolServer, http_error
from kvarn.tools.types import OpenedTools, Quote, ToolCall, ToolContext, ToolDefinition, ToolResult
from kvarn.wire.openai.mcp_tools import WebSearchFilters, WebSearchTool
from kvarn.wire.openai.parse import validate

_RESULTS = {"low": 3, "medium": 6, "high": 10}
_MAX_SNIPPET = 2000
_MAX_ANSWER_BYTES = 512 * 1024
"""Reading so much JSON takes some 30 ms, in which nothing else runs."""
_MAX_QUERY = 1000
_PLACEHOLDER = "{query}"
_LISTS = (("results",), ("web", "results"), ("data",), ("items",), ("organic",), ("organic_results",))
"""Places of the results in the answers of search servers."""
_URLS, _TITLES = ("url", "link", "href"), ("title", "name")
_SNIPPETS = ("content", "snippet", "description", "text", "body")

_DEFINITION = ToolDefinition(
    "web_search",
    "Search the web. Gives titles, addresses and passages of pages.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words to search for."}},
        "required": ["query"],
        "additionalProperties": False,
    },
)


class WebSearchProvider:
    def __init__(self, servers: ToolServers, http: SafeHttp) -> None:
        self._servers = servers
        self._http = http

    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        """The search, or nothing where neither the project nor the operator has named a server for it."""
        server = await self._servers.of_kind(context.record.principal.owner, "web_search")
        if server is None:
            return OpenedTools([])
        entry = validate(WebSearchTool, dict(asked), context.record.reply.warnings)
        return OpenedTools([WebSearch(server, self._http, entry)])

    async def problem(self, owner: Owner) -> str | None:
        if await self._servers.of_kind(owner, "web_search") is None:
            return "No search server is registered: register one of kind `web_search`."
        return None


@dataclass(frozen=True, slots=True)
class Page:
    url: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class WebSearch:
    server: ToolServer
    http: SafeHttp
    entry: WebSearchTool

    definition = _DEFINITION
    item_type = "web_search_call"

    @property
    def item_fields(self) -> Mapping[str, Any]:
        return {}

    @property
    def needs_approval(self) -> bool:
        return self.server.require_approval == "always"

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        query = ""
        try:
            query = str(arguments_of(call).get("query", ""))[:_MAX_QUERY]
            pages = await self._search(query)
        except ToolCallError as error:
            return replace(failed(error, self.server, context.max_result_bytes), item=_item(query, ()))
        quotes = [Quote("", page.title, 0, len(page.text), page.text, page.url) for page in pages]
        return ToolResult("" if quotes else "Nothing was found.", item=_item(query, pages), quotes=quotes)

    async def _search(self, query: str) -> Sequence[Page]:
        status, _, body = await exchange(
            self.server, self.http, "GET", _address(self.server.url, query), max_bytes=_MAX_ANSWER_BYTES
        )
        if status != httpx.codes.OK:
            raise http_error(status, f"the search server answered with HTTP status {status}")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise http_error(status, "the search server answered with something else than JSON") from None
        allowed = [page for page in pages_of(found) if _is_allowed(page.url, self.entry.filters)]
        return allowed[: _RESULTS[self.entry.search_context_size or "medium"]]


def pages_of(answer: Any) -> Iterator[Page]:
    """The pages in a search server's answer; what has no web address is none."""
    for place in _LISTS:
        found = answer
        for step in place:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, list):
            for each in found:
                if isinstance(each, dict) and (url := _first(each, _URLS)).startswith(("https://", "http://")):
                    yield Page(url[:2048], _first(each, _TITLES)[:300] or url, _first(each, _SNIPPETS)[:_MAX_SNIPPET])
            return


def _address(url: str, query: str) -> str:
    if _PLACEHOLDER in url:
        return url.replace(_PLACEHOLDER, quote(query, safe=""))
    return str(httpx.URL(url).copy_merge_params({"q": query}))


def _is_allowed(url: str, filters: WebSearchFilters | None) -> bool:
    host = httpx.URL(url).host if _is_url(url) else ""
    if filters is None:
        return bool(host)

    def among(domains: Sequence[str]) -> bool:
        return any(host == each.lower() or host.endswith(f".{each.lower()}") for each in domains)

    allowed = filters.allowed_domains is None or among(filters.allowed_domains)
    return bool(host) and allowed and not among(filters.blocked_domains or ())


def _is_url(url: str) -> bool:
    try:
        httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return False
    return True


def _item(query: str, pages: Sequence[Page]) -> dict[str, Any]:
    sources = [{"type": "url", "url": page.url} for page in pages]
    return {"action": {"type": "search", "query": query, "queries": [query], "sources": sources}}


def _first(found: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((value for name in names if isinstance(value := found.get(name), str)), "")
