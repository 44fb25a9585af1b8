"""A project that uses an MCP server which means harm: without a database, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from kvarn.config.tools import ToolsConfig
from kvarn.store.owner import Owner, Principal
from kvarn.tools.http_client import SafeHttp
from kvarn.tools.mcp.provider import McpProvider
from kvarn.tools.server import ToolServer
from kvarn.tools.types import OpenedTools, ToolContext, ToolResult
from mcp_servers import call, context, entry
from scripted_server import Script, ScriptedServer, scripted_server

PRINCIPAL = Principal(Owner("org-a", "proj-a"))


@dataclass
class KnownServers:
    """Registered servers by name, of one project."""

    known: dict[str, ToolServer] = field(default_factory=dict)
    owner: Owner = PRINCIPAL.owner
    noted: list[dict[str, str]] = field(default_factory=list)
    configured: dict[str, ToolServer] = field(default_factory=dict)

    async def find(self, owner: Owner, label: str) -> ToolServer | None:
        return self.configured.get(label) or (self.known.get(label) if owner == self.owner else None)

    async def note(self, owner: Owner, server: ToolServer, compared: Any) -> None:
        self.noted.append(dict(compared.waiting))


@dataclass
class World:
    server: ScriptedServer
    servers: KnownServers
    provider: McpProvider
    asked: ToolContext
    opened: OpenedTools | None = None

    async def open(self, label: str = "rogue", **fields: Any) -> dict[str, Any]:
        """The tools that a request gets, by the model's names."""
        self.opened = await self.provider.open(self.asked, entry(label, self.server.place, **fields))
        return {tool.definition.name: tool for tool in self.opened.tools}

    async def registered(self, label: str = "rogue", **fields: Any) -> dict[str, Any]:
        """The tools of a registered server."""
        asked = {"type": "mcp", "server_label": label, **fields}
        self.opened = await self.provider.open(self.asked, asked)
        return {tool.definition.name: tool for tool in self.opened.tools}

    async def call(self, tool: Any, arguments: str = "{}") -> ToolResult:
        return cast(ToolResult, await tool.call(self.asked, call(tool.definition.name, arguments)))

    def forget(self) -> None:
        """Let five minutes pass: lists of tools are read again."""
        self.provider._tools.clear()
        self.provider._operations.clear()

    @property
    def error(self) -> str | None:
        assert self.opened is not None
        return cast("str | None", self.opened.items[0]["error"])


@asynccontextmanager
async def facing(script: Script, timeout_s: float = 30.0, **registered: ToolServer) -> AsyncGenerator[World, None]:
    async with scripted_server(script) as server:
        servers = KnownServers(dict(registered))
        http = SafeHttp(ToolsConfig(allow_private=[server.place]))
        provider = McpProvider(cast(Any, servers), http, request_servers=True)
        yield World(server, servers, provider, context(PRINCIPAL))
