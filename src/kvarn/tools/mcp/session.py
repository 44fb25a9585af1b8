"""Sessions with MCP servers: over HTTP one for each listing and each call, closed when that ends, however it ends.

The protocol is the SDK's; its requests go through `SafeTransport`, as all of a project's do. Servers that are commands
are the operator's: their processes are kept (`commands.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import httpx

import kvarn
from kvarn.tools.addresses import AddressRefusedError
from kvarn.tools.functions import MAX_TOOLS, ServerTool, named_once
from kvarn.tools.http_client import MAX_RESPONSE_BYTES, SafeHttp, SafeTransport, ToolServerError, check_url
from kvarn.tools.mcp.commands import CommandSessions
from kvarn.tools.mcp.library import SdkMissingError, load_sdk
from kvarn.tools.server import ToolCallError, ToolServer, http_error, protocol_error, tool_error

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp_types import CallToolResult

_MAX_PAGES = 20
_MAX_LIST_BYTES = 512 * 1024
"""Bytes of all pages of a list: reading as many small tools takes some 0.1 s, in which nothing else runs."""
_MAX_BRACKETS = 100_000
"""Objects and arrays of a session's answers: reading so many takes some 0.1 s; those of 4 MiB would take 1.6 s."""
_UNREACHED = 502
_REFUSED = 403
_GOODBYE_S = 2.0
"""Seconds that a server has for the end of a session: its client is not asked to wait, and a second cancellation may
never come."""
_LATE = 504
_INTERNAL = -32603
_STAND_INS = frozenset({"Server returned an error response", "Not Found", "Session terminated"})
"""The SDK's words for an HTTP status without an error of the protocol."""


@dataclass(frozen=True, slots=True)
class ListedTools:
    tools: tuple[ServerTool, ...]
    mode: str
    """The protocol that the server speaks, for the next session with it: saves a round trip or two."""
    left_out: int = 0
    """Tools beyond `MAX_TOOLS`, and those whose name another one has too."""


class McpSessions:
    """Opens sessions: over HTTP one for each use, with commands one that is kept."""

    def __init__(self, http: SafeHttp) -> None:
        self._http = http
        self._commands = CommandSessions(_start)

    @asynccontextmanager
    async def open(
        self, server: ToolServer, mode: str, max_bytes: int = MAX_RESPONSE_BYTES
    ) -> AsyncGenerator[Client, None]:
        """A session, within the server's time. Whatever goes wrong in it is a `ToolCallError`."""
        try:
            await load_sdk("a tool of type mcp")
        except SdkMissingError as error:
            raise protocol_error(_INTERNAL, str(error)) from None
        wire = _Wire(self._http.transport(trusted=server.trusted, max_bytes=max_bytes))
        async with _told_errors(server, wire), asyncio.timeout(server.timeout_s):
            if server.command:
                async with self._commands.client(server) as client:
                    yield client
            else:
                async with AsyncExitStack() as stack:
                    yield await _connect(server, wire, mode, stack)


async def list_tools(server: ToolServer, sessions: McpSessions) -> ListedTools:
    """The tools that a server tells. Raises `ToolCallError`."""
    async with sessions.open(server, "auto", _MAX_LIST_BYTES) as client:
        tools: list[ServerTool] = []
        cursor, count = None, 0
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            count += len(page.tools)
            tools += [_server_tool(each) for each in page.tools[: MAX_TOOLS + 1 - len(tools)]]
            cursor = page.next_cursor
            if cursor is None or len(tools) > MAX_TOOLS:
                break
        version = client.session.protocol_version
        kept = named_once(tools)[:MAX_TOOLS]
        return ListedTools(tuple(kept), _mode_of(version), count - len(kept))


async def call_tool(
    server: ToolServer, sessions: McpSessions, mode: str, name: str, arguments: Mapping[str, Any]
) -> str:
    """The answer of a tool, as a text. Raises `ToolCallError`."""
    async with sessions.open(server, mode) as client:
        result = await client.call_tool(name, dict(arguments))
    text = text_of(result)
    if result.is_error:
        raise tool_error(text)
    return text


def text_of(result: CallToolResult) -> str:
    """The texts of a result; what is no text is named. Where there are none, its structured content as JSON."""
    parts = []
    for block in result.content:
        match block.type:
            case "text":
                parts.append(block.text)
            case "image" | "audio":
                size = len(block.data.rstrip("=")) * 3 // 4
                parts.append(f"[{block.type}, {block.mime_type}, {size} bytes: not shown]")
            case "resource_link":
                parts.append(f"[resource {block.uri}: {block.name}]")
            case "resource":
                text = getattr(block.resource, "text", None)
                parts.append(text if text is not None else f"[resource {block.resource.uri}: not shown]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


@asynccontextmanager
async def _told_errors(server: ToolServer, wire: _Wire) -> AsyncGenerator[None, None]:
    """Make every error a `ToolCallError`."""
    from mcp.shared.exceptions import MCPError

    try:
        yield
    except TimeoutError:
        raise http_error(_LATE, f"{server.label!r} took more than {server.timeout_s:g} seconds") from None
    except MCPError as error:
        stands_in = error.message in _STAND_INS or wire.failure is not None
        told = _told(wire) if stands_in else None
        raise told or protocol_error(error.code, str(error.message)[:1000]) from None
    except ToolCallError:
        raise
    except Exception as error:  # of the SDK's task groups too
        failure = _told(wire) or _first(error)
        if failure is None:
            raise protocol_error(_INTERNAL, f"{server.label!r} does not speak the protocol") from error
        raise failure from None


async def _connect(server: ToolServer, wire: _Wire, mode: str, stack: AsyncExitStack) -> Client:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    try:
        check_url(server.url)
    except ToolServerError as error:
        raise http_error(_REFUSED, str(error)) from None
    http = httpx2.AsyncClient(transport=_bridge(wire), headers=dict(server.headers), timeout=None, trust_env=False)
    await stack.enter_async_context(http)
    transport = streamable_http_client(server.url, http_client=http, max_sse_event_size=MAX_RESPONSE_BYTES)
    return await stack.enter_async_context(_client(transport, mode))


async def _start(server: ToolServer, stack: AsyncExitStack) -> Client:
    """Run a server's command. It gets no environment of this process but what finds programs."""
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    place = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    command, *rest = server.command
    started = StdioServerParameters(command=command, args=rest, env=place | dict(server.environment))
    transport = stdio_client(started, errlog=stack.enter_context(_nowhere()))
    return await stack.enter_async_context(_client(transport, "auto"))


def _client(transport: Any, mode: str) -> Client:
    from mcp import Client
    from mcp_types import Implementation

    return Client(
        transport,
        mode=mode,
        cache=None,
        input_required_max_rounds=1,
        client_info=Implementation(name="kvarn", version=kvarn.__version__),
    )


class _Wire:
    """The safe transport, and what went wrong on it: the SDK tells that in words of its own."""

    def __init__(self, transport: SafeTransport) -> None:
        self.transport = transport
        self.failure: AddressRefusedError | ToolServerError | None = None
        self.status: int | None = None
        """HTTP status of the latest refusal."""
        self._brackets = 0

    def count(self, part: bytes) -> None:
        """Count the objects and arrays of answers, by their brackets. Raises `ToolServerError` for too many."""
        self._brackets += part.count(b"[") + part.count(b"{")
        if self._brackets > _MAX_BRACKETS:
            raise ToolServerError(f"the server answered with more than {_MAX_BRACKETS} objects and arrays")


def _bridge(wire: _Wire) -> httpx2.AsyncBaseTransport:
    """The SDK's HTTP library over ours: one implementation of the checks for both."""
    import httpx2

    class Stream(httpx2.AsyncByteStream):
        def __init__(self, response: httpx.Response) -> None:
            self._response = response

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for part in self._response.aiter_raw():
                    wire.count(part)
                    yield part
            except ToolServerError as error:
                wire.failure = error
                raise httpx2.ReadError(str(error)) from None

        async def aclose(self) -> None:
            await self._response.aclose()

    class Bridge(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            asked = httpx.Request(
                request.method,
                str(request.url),
                headers=request.headers.raw,
                content=await request.aread(),
                extensions=dict(request.extensions),
            )
            is_goodbye = request.method == "DELETE"
            try:
                async with asyncio.timeout(_GOODBYE_S if is_goodbye else None):
                    response = await wire.transport.handle_async_request(asked)
            except (AddressRefusedError, ToolServerError) as error:
                wire.failure = error
                raise httpx2.ConnectError(str(error), request=request) from None
            if request.method == "POST":  # servers may refuse to open a stream (GET) or to end a session (DELETE)
                wire.status = response.status_code if response.status_code >= 400 else None
            if is_goodbye:
                await response.aclose()
                return httpx2.Response(response.status_code)
            return httpx2.Response(response.status_code, headers=response.headers.raw, stream=Stream(response))

        async def aclose(self) -> None:
            await wire.transport.aclose()

    return Bridge()


def _told(wire: _Wire) -> ToolCallError | None:
    if isinstance(wire.failure, AddressRefusedError):
        return http_error(_REFUSED, str(wire.failure))
    if wire.failure is not None:
        return http_error(_UNREACHED, str(wire.failure))
    if wire.status is not None:
        return http_error(wire.status, f"the server answered with HTTP status {wire.status}")
    return None


def _first(error: BaseException) -> ToolCallError | None:
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_first, error.exceptions)), None)
    if isinstance(error, ToolCallError):
        return error
    if isinstance(error, OSError):
        return protocol_error(_INTERNAL, f"the server's command cannot be run: {error.strerror or error}")
    code = getattr(error, "code", None)
    return protocol_error(code, str(error)[:1000]) if isinstance(code, int) else None


def _server_tool(tool: Any) -> ServerTool:
    told = tool.annotations
    return ServerTool(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        annotations=None if told is None else told.model_dump(by_alias=True, exclude_none=True),
    )


def _mode_of(version: str | None) -> str:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return version if version in MODERN_PROTOCOL_VERSIONS else "legacy"


def _nowhere() -> TextIO:
    """Takes what a command writes to its standard error, which is not this log's."""
    return Path(os.devnull).open("w", encoding="utf-8")
