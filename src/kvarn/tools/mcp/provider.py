"""Tools of type `mcp`: those of a registered server, of either kind, or of one that a request names by its URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvarn.answers.record import RequestRecord
from kvarn.identity.scopes import check_tool
from kvarn.store.ids import new_id
from kvarn.store.owner import Owner
from kvarn.tools.functions import ServerTool, definition_of
from kvarn.tools.http_client import SafeHttp, ToolServerError, check_headers, check_url
from kvarn.tools.http_tools import call_operation, read_operations
from kvarn.tools.listing import ListCache
from kvarn.tools.mcp.session import McpSessions, call_tool, list_tools
from kvarn.tools.openapi import Operation
from kvarn.tools.pins import compare
from kvarn.tools.registered import ToolServers
from kvarn.tools.results import arguments_of, completed, failed
from kvarn.tools.server import ToolCallError, ToolServer, without_secrets
from kvarn.tools.types import OpenedTools, Tool, ToolCall, ToolContext, ToolDefinition, ToolResult
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.mcp_tools import McpTool
from kvarn.wire.openai.parse import validate

_SHOWN_NAMES = 5


class McpProvider:
    """Opens tools of type `mcp`. What it offers of a pinned server is what an administrator approved."""

    def __init__(self, servers: ToolServers, http: SafeHttp, *, request_servers: bool) -> None:
        self.servers = servers
        self.http = http
        self._request_servers = request_servers
        self.sessions = McpSessions(http)
        self._tools = ListCache(
            lambda server: list_tools(server, self.sessions), lambda listed: sum(each.chars for each in listed.tools)
        )
        self._operations = ListCache(
            lambda server: read_operations(server, http), lambda found: sum(each.tool.chars for each in found)
        )

    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        entry = validate(McpTool, dict(asked), context.record.reply.warnings)
        server = await self._find(context.record, entry)
        listing = {"id": new_id("mcpl_"), "type": "mcp_list_tools", "server_label": entry.server_label}
        try:
            told = await self.told(context.record.principal.owner, server)
        except ToolCallError as error:
            why = without_secrets(str(error), server)
            context.record.warn(f"the tools of {server.label!a} could not be listed: {why}")
            return OpenedTools([], [listing | {"tools": [], "error": why}])
        if told.left_out:
            context.record.warn(f"left out {told.left_out} tools of {server.label!a}: too many, or sharing a name")
        kept, waiting = await self._allowed(context.record, server, told)
        tools: list[Tool] = []
        listed: list[dict[str, Any]] = []
        for each in kept:
            if not entry.offers(each.name, each.is_read_only):
                continue
            try:
                definition = definition_of(server.label, server.description, each)
            except ValueError as why:
                context.record.warn(f"left out a tool of {server.label!a}: {why}")
                continue
            tools.append(self._tool(server, told, each, definition, _waits(server, entry, each)))
            listed.append(each.as_listed())
        return OpenedTools(tools, [listing | {"tools": listed, "error": waiting}])

    async def problem(self, owner: Owner) -> str | None:
        return None

    async def told(self, owner: Owner, server: ToolServer, *, fresh: bool = False) -> ServerTools:
        """The tools that a server tells. Raises `ToolCallError`."""
        if server.kind == "http":
            # A document that is looked at before it is approved is not remembered: requests go by the approved one.
            operations = await (read_operations(server, self.http) if fresh else self._operations.get(owner, server))
            return ServerTools([each.tool for each in operations], {each.tool.name: each for each in operations})
        listed = await self._tools.get(owner, server, fresh=fresh)
        return ServerTools(listed.tools, mode=listed.mode, left_out=listed.left_out)

    async def _find(self, record: RequestRecord, entry: McpTool) -> ToolServer:
        """The server of an entry. Raises `ApiError`."""
        known = await self.servers.find(record.principal.owner, entry.server_label)
        if entry.server_url is None:
            if known is None or known.kind == "web_search":
                why = f"There is no tool server {entry.server_label!r} in this project: give its 'server_url', or"
                raise ApiError(404, f"{why} have it registered.", code="tool_server_not_found", param="server_label")
            if entry.sent_headers:
                why = f"{entry.server_label!r} is registered with its own headers: leave out 'headers'"
                raise invalid_request(f"{why} and 'authorization'.", "headers")
            return known if entry.server_description is None else replace(known, description=entry.server_description)
        if known is not None:
            why = f"{entry.server_label!r} is a registered tool server: leave out 'server_url', or choose another"
            raise invalid_request(f"{why} 'server_label'.", "server_label")
        check_tool(record.principal, "mcp")  # a scope of one label means the server registered under it
        if not self._request_servers:
            why = "This server takes registered tool servers only (tools.request_servers): leave out 'server_url'."
            raise ApiError(403, why, code="tool_server_not_allowed", param="server_url")
        try:
            check_url(entry.server_url)
            headers = check_headers(entry.sent_headers)
        except (ToolServerError, ValueError) as error:
            param = "server_url" if isinstance(error, ToolServerError) else "headers"
            raise invalid_request(f"The server {entry.server_label!r} cannot be asked: {error}.", param) from None
        return ToolServer(
            entry.server_label, url=entry.server_url, headers=headers, description=entry.server_description or ""
        )

    async def _allowed(
        self, record: RequestRecord, server: ToolServer, told: ServerTools
    ) -> tuple[Sequence[ServerTool], str | None]:
        """The tools that may be offered, and a sentence where none may be that the server tells."""
        tools, error = told.tools, None
        if server.pinned is not None:
            compared = compare(server.pinned, tools, server.refused)
            tools = compared.approved
            await self.servers.note(record.principal.owner, server.id, compared)
            if compared.waiting:
                names = ", ".join(f"{name[:64]!a} ({state})" for name, state in _first(compared.waiting))
                count = len(compared.waiting)
                why = f"{count} tools of {server.label!a} wait for an administrator's approval: {names}"
                record.warn(why)
                error = None if tools else why
        if server.allowed_tools is not None:
            tools = [tool for tool in tools if tool.name in server.allowed_tools]
        return tools, error

    def _tool(
        self, server: ToolServer, told: ServerTools, tool: ServerTool, definition: ToolDefinition, needs_approval: bool
    ) -> Tool:
        operation = told.operations.get(tool.name)
        return ServedTool(definition, needs_approval, server, tool.name, self, told.mode, operation)


@dataclass(frozen=True, slots=True)
class ServerTools:
    tools: Sequence[ServerTool]
    operations: Mapping[str, Operation] = field(default_factory=dict)
    mode: str = "auto"
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ServedTool:
    definition: ToolDefinition
    needs_approval: bool
    server: ToolServer
    name: str
    provider: McpProvider
    mode: str
    operation: Operation | None
    """None: the server speaks MCP."""

    item_type = "mcp_call"

    @property
    def item_fields(self) -> Mapping[str, Any]:
        return {"server_label": self.server.label, "name": self.name}

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        try:
            arguments = arguments_of(call)
            if self.operation is not None:
                text = await call_operation(self.server, self.provider.http, self.operation, arguments)
            else:
                text = await call_tool(self.server, self.provider.sessions, self.mode, self.name, arguments)
        except ToolCallError as error:
            return failed(error, self.server, context.max_result_bytes)
        return completed(without_secrets(text, self.server), context.max_result_bytes, self.definition.name)


def _waits(server: ToolServer, entry: McpTool, tool: ServerTool) -> bool:
    """Whether calls of a tool wait for the client's approval: unless somebody says otherwise they do."""
    if server.require_approval == "always":
        return True
    return (entry.approval_of(tool.name, tool.is_read_only) or server.require_approval or "always") == "always"


def _first(waiting: Mapping[str, str]) -> list[tuple[str, str]]:
    return list(waiting.items())[:_SHOWN_NAMES]
