"""Kvarn as a server of the Model Context Protocol: models, files and search for other people's agents.

Each exchange stands alone: it brings its key, gets one JSON answer, and leaves nothing behind. What a key may do here
is what it may do over HTTP: each tool names the path whose scope it needs.
"""

from __future__ import annotations

import base64
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

import kvarn
from kvarn.answers.errors import HANDLED, to_api_error
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.record import RequestRecord
from kvarn.gateway.body import limit_body, read_body
from kvarn.gateway.mcp_operations import LISTED, OPERATIONS, Asking, ServerOperation, bytes_of, run_operation
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import check_endpoint
from kvarn.store.repositories.files import find_file, list_files
from kvarn.store.repositories.pages import Cursor
from kvarn.tools.mcp.library import SdkMissingError, load_sdk
from kvarn.wire.openai.errors import ApiError, invalid_request

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_MAX_RESOURCE = 1024 * 1024
_FILES = "kvarn://files/"
_INSTRUCTIONS = "Ask the models of this server, read the files of the key's project, search its vector stores."


class McpAnswer(Response):
    """The answer to one exchange, which the protocol's SDK writes."""

    def __init__(self, gateway: Gateway, record: RequestRecord, body: bytes) -> None:
        super().__init__()
        self._asking = Asking(gateway, record)
        self._given = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        manager = StreamableHTTPSessionManager(
            _server(self._asking), json_response=True, stateless=True, max_request_body_size=max(1, len(self._given))
        )
        unread: list[Message] = [{"type": "http.request", "body": self._given, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        async with manager.run():
            await manager.handle_request(scope, replay, send)


async def read_exchange(gateway: Gateway, record: RequestRecord, request: Request) -> McpAnswer:
    """The answer to a request of a client. Raises `ApiError`: 501 without the extra, and as bodies do."""
    try:
        await load_sdk("the MCP server")
    except SdkMissingError as error:
        raise ApiError(501, str(error), type="server_error", code="mcp_not_installed") from None
    config = gateway.gateway_config
    receive = limit_body(request, config.max_body_bytes, config.body_timeout_s, "gateway.max_body_bytes")
    record.body_bytes = len(body := await read_body(receive, HeldBytes(gateway.held, record)))
    return McpAnswer(gateway, record, body)


def _server(asking: Asking) -> Server[Any]:
    """A server for one exchange: it knows who asks."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    offered = {each.name: each for each in OPERATIONS if asking.may_ask(each.path)}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(each) for each in offered.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text, failed = (
                await run_operation(asking, offered.get(params.name), params.name, params.arguments or {}),
                False,
            )
        except HANDLED as error:
            text, failed = to_api_error(error).message, True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    async def list_resources(context: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        if not asking.may_ask("/v1/files"):
            return types.ListResourcesResult(resources=[])
        cursor = Cursor(limit=LISTED, after=None if params is None else params.cursor)
        with _protocol_errors():
            page = await list_files(asking.gateway.store, asking.record.principal.owner, cursor)
        files = [types.Resource(uri=_FILES + file.id, name=file.filename, size=file.size) for file in page.items]
        return types.ListResourcesResult(resources=files, next_cursor=page.items[-1].id if page.has_more else None)

    async def read_resource(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        with _protocol_errors():
            check_endpoint(asking.record.principal, "/v1/files")
            file = await find_file(asking.gateway.store, asking.record.principal.owner, uri.removeprefix(_FILES))
            if file.size > _MAX_RESOURCE:
                most = f"{_MAX_RESOURCE // 2**20} MiB"
                raise invalid_request(f"The file has more than {most}: call the tool 'read_file', which reads parts.")
            data = await bytes_of(asking.gateway, file, 0, file.size)
        return types.ReadResourceResult(contents=[_contents(uri, data)])

    return Server(
        "kvarn",
        version=kvarn.__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


@contextmanager
def _protocol_errors() -> Generator[None, None, None]:
    """Make errors that the client can act on the protocol's."""
    import mcp_types as types
    from mcp.shared.exceptions import MCPError

    try:
        yield
    except HANDLED as error:
        raise MCPError(types.INVALID_PARAMS, to_api_error(error).message) from None


def _described(operation: ServerOperation) -> Any:
    import mcp_types as types

    schema = {"type": "object", "properties": dict(operation.properties), "required": list(operation.required)}
    return types.Tool(
        name=operation.name,
        description=operation.description,
        input_schema=schema | {"additionalProperties": False},
        annotations=types.ToolAnnotations(read_only_hint=operation.read_only),
    )


def _contents(uri: str, data: bytes) -> Any:
    import mcp_types as types

    try:
        return types.TextResourceContents(uri=uri, text=data.decode())
    except UnicodeDecodeError:
        return types.BlobResourceContents(uri=uri, blob=base64.b64encode(data).decode())
