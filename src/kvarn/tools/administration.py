"""Registration of servers: what administrators ask of them before a model may."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from kvarn.config.tool_servers import ToolServerKind
from kvarn.store.models import StoredToolServer
from kvarn.store.owner import Owner
from kvarn.tools.functions import ServerTool
from kvarn.tools.http_client import ToolServerError, check_headers, check_url
from kvarn.tools.http_tools import fetch_document
from kvarn.tools.mcp.provider import McpProvider
from kvarn.tools.openapi import MAX_DOCUMENT_BYTES, DocumentError, operations_of
from kvarn.tools.pins import ComparedTools, compare, list_digest, pins_of, shown_tool
from kvarn.tools.server import ToolCallError, ToolServer, without_secrets
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.organization.tool_servers import ServerToolList, ServerToolObject


class ToolServerAdministration:
    """Checks and asks servers for administrators. All errors are `ApiError`s."""

    def __init__(self, provider: McpProvider) -> None:
        self.provider = provider
        self._servers = provider.servers

    def check_name(self, name: str) -> None:
        if name in self._servers.configured:
            why = f"The operator's configuration has a tool server {name!r}: choose another name."
            raise ApiError(409, why, code="conflict", param="name")

    async def sealed(self, headers: Mapping[str, str]) -> bytes | None:
        """Headers as they are kept."""
        try:
            return await self._servers.seal(check_headers(headers))
        except ValueError as error:
            raise invalid_request(f"The tool server cannot be sent these headers: {error}.", "headers") from None

    async def examined(
        self,
        owner: Owner,
        name: str,
        kind: ToolServerKind,
        url: str | None,
        headers: Mapping[str, str],
        document: Mapping[str, Any] | None,
        timeout_s: float,
    ) -> tuple[Mapping[str, Any] | None, Sequence[ServerTool]]:
        """The document and the tools of a server that is to be registered."""
        if url is not None:
            try:
                check_url(url)
            except ToolServerError as error:
                raise invalid_request(f"The tool server cannot be asked: {error}.", "url") from None
        server = ToolServer(name, kind, url or "", headers=headers, document=document, timeout_s=timeout_s)
        return await self._told(owner, server)

    async def moved(
        self,
        owner: Owner,
        row: StoredToolServer,
        url: str | None,
        document: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """The fields that change where a registered server has another URL, or another document."""
        if (document is None) != (row.url is not None):
            raise invalid_request("A tool server keeps its 'url', or its 'document': register another one.", "url")
        known = await self._servers.of_row(row)
        if headers is None and known.headers and not _is_where(row, url, document):
            message = "Give 'headers' too: those that are kept, which nobody may read, are not sent to another server."
            raise invalid_request(message, "headers")
        sent = known.headers if headers is None else headers
        read, _ = await self.examined(owner, row.name, known.kind, url, sent, document, row.timeout_s)
        return {"url": url, "document": None if read is None else dict(read)}

    async def told(self, owner: Owner, row: StoredToolServer) -> tuple[Mapping[str, Any] | None, Sequence[ServerTool]]:
        """The document and the tools that a registered server tells now."""
        server = await self._servers.of_row(row)
        return await self._told(owner, server if not server.url else replace(server, document=None))

    async def list_tools(self, owner: Owner, row: StoredToolServer) -> ServerToolList:
        """The tools that a registered server tells now, with what was decided about each; notes which wait."""
        _, tools = await self.told(owner, row)
        compared = compare(row.pinned, tools, row.refused)
        await self._servers.note(owner, row.id, compared)
        return _listed(tools, compared, row.approved or {})

    async def list_configured_tools(self, owner: Owner, server: ToolServer) -> ServerToolList:
        """The tools that a server of the configuration tells now: all are approved."""
        _, tools = await self._told(owner, server)
        return _listed(tools, compare(pins_of(tools), tools), {})

    async def _told(self, owner: Owner, server: ToolServer) -> tuple[Mapping[str, Any] | None, Sequence[ServerTool]]:
        if server.kind == "web_search":
            return None, ()
        try:
            if server.kind == "http" and server.document is None:
                server = replace(server, document=await fetch_document(server, self.provider.http))
            if server.document is not None and len(json.dumps(server.document)) > MAX_DOCUMENT_BYTES:
                why = f"The document has more than {MAX_DOCUMENT_BYTES} bytes: leave operations out."
                raise invalid_request(why, "document")
            return server.document, (await self.provider.told(owner, server, fresh=True)).tools
        except ToolCallError as error:
            why = f"The tool server {server.label!r} does not tell its tools: {without_secrets(str(error), server)}"
            raise ApiError(400, why, code="tool_server_failed", param="url") from None


def _listed(tools: Sequence[ServerTool], compared: ComparedTools, approved: Mapping[str, Any]) -> ServerToolList:
    data = [
        ServerToolObject(
            name=tool.name,
            status=(state := compared.states[tool.name]),
            digest=tool.digest,
            approved=None if state == "approved" else approved.get(tool.name),
            **shown_tool(tool),
        )
        for tool in tools
    ]
    return ServerToolList(object="list", data=data, digest=list_digest(pins_of(tools)), gone=list(compared.gone))


def _is_where(row: StoredToolServer, url: str | None, document: Mapping[str, Any] | None) -> bool:
    """Whether another URL or document of a server sends requests to no other scheme, host and port than before."""
    try:
        return _origins(url, document) <= _origins(row.url, None if row.url else row.document)
    except (DocumentError, httpx.InvalidURL, ValueError):
        return False


def _origins(url: str | None, document: Mapping[str, Any] | None) -> set[tuple[str, str, int | None]]:
    urls = [url or ""] if document is None else [each.url for each in operations_of(document)]
    return {(parsed.scheme, parsed.host, parsed.port) for parsed in map(httpx.URL, urls)}


def check_digest(tools: Sequence[ServerTool], digest: str | None) -> dict[str, str]:
    """The pins of a list, which is the one that was looked at. Raises `ApiError` 409 where it is another."""
    pins = pins_of(tools)
    if digest is not None and digest != list_digest(pins):
        why = "The tool server tells other tools than those that you looked at: look again, then approve."
        raise ApiError(409, why, code="tools_changed", param="digest")
    return pins
