"""MCP servers for the tests: the SDK's own, on a socket, and what a request needs to open tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn

from kvarn.answers.record import RequestRecord
from kvarn.config.schema import KvarnConfig
from kvarn.config.tools import ToolsConfig
from kvarn.store.engine import Store
from kvarn.store.owner import Principal
from kvarn.tools.http_client import SafeHttp
from kvarn.tools.mcp.provider import McpProvider
from kvarn.tools.registered import ToolServers
from kvarn.tools.types import ToolCall, ToolContext


@asynccontextmanager
async def on_socket(app: Any) -> AsyncGenerator[str, None]:
    """Serve an ASGI application on loopback; gives its address, such as `127.0.0.1:4711`."""
    config = uvicorn.Config(app, port=0, log_level=logging.CRITICAL, lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving
        await asyncio.sleep(0.005)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def tool_config(**tools: Any) -> KvarnConfig:
    return KvarnConfig(tools=ToolsConfig.model_validate(tools))


def provider(store: Store, config: KvarnConfig, **given: Any) -> McpProvider:
    http = given.pop("http", None) or SafeHttp(config.tools)
    servers = ToolServers(config, store, **given)
    return McpProvider(servers, http, request_servers=config.tools.request_servers)


def context(principal: Principal, max_result_bytes: int = 10_000) -> ToolContext:
    record = RequestRecord("req-test", principal=principal)
    return ToolContext(cast(Any, None), record, deadline=1e12, max_result_bytes=max_result_bytes)


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall("call_1", name, arguments)


def entry(label: str, place: str | None = None, **fields: Any) -> Mapping[str, Any]:
    at = {} if place is None else {"server_url": f"http://{place}/mcp"}
    return {"type": "mcp", "server_label": label, "require_approval": "never", **at, **fields}
