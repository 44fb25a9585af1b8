"""Kvarn as a server of the Model Context Protocol: models, files and search for other people's agents.

Each exchange stands alone: it brings its key, gets one JSON answer, and leaves nothing behind. What a key may do here
is what it may do over HTTP: each tool names the path whose scope it needs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

import kvarn
from kvarn.answers.chat.operation import start_chat
from kvarn.answers.errors import HANDLED, to_api_error
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.record import RequestRecord
from kvarn.config.extras import missing_extra
from kvarn.gateway.body import limit_body
from kvarn.gateway.routes.models import visible_models
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import check_endpoint
from kvarn.store.models import File
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import find_file, list_files
from kvarn.store.repositories.pages import Cursor
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import validate

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_MAX_READ = 64 * 1024
_MAX_RESOURCE = 1024 * 1024
_LISTED = 100
_FILES = "kvarn://files/"
_INSTRUCTIONS = "Ask the models of this server, and read the files of the key's project."


@dataclass(frozen=True, slots=True)
class Asking:
    """A client's request to this server."""

    gateway: Gateway
    record: RequestRecord

    def may_ask(self, path: str) -> bool:
        try:
            check_endpoint(self.record.principal, path)
        except ApiError:
            return False
        return True


Run = Callable[[Asking, Mapping[str, Any]], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class ServerOperation:
    """A tool of this server."""

    name: str
    description: str
    path: str
    """Path whose scope it needs."""
    run: Run
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    read_only: bool = True


async def _list_models(asking: Asking, arguments: Mapping[str, Any]) -> str:
    told = [
        {"id": model.id, "kind": model.kind, "ready": model.ready, "max_model_len": model.max_model_len}
        for model in visible_models(asking.gateway, asking.record.principal)
    ]
    return json.dumps(told, ensure_ascii=False)


async def _ask_model(asking: Asking, arguments: Mapping[str, Any]) -> str:
    messages = [{"role": "user", "content": arguments["prompt"]}]
    if arguments.get("instructions"):
        messages.insert(0, {"role": "system", "content": arguments["instructions"]})
    body = {"model": arguments["model"], "messages": messages}
    if "max_tokens" in arguments:
        body["max_completion_tokens"] = arguments["max_tokens"]
    request = validate(ChatCompletionRequest, body, asking.record.reply.warnings)
    run = await start_chat(asking.gateway, asking.record, request)
    completion = await run.collect()
    return completion.choices[0].message.content or ""


async def _list_files(asking: Asking, arguments: Mapping[str, Any]) -> str:
    cursor = Cursor(limit=min(int(arguments.get("limit", 20)), _LISTED), after=arguments.get("after"))
    page = await list_files(asking.gateway.store, asking.record.principal.owner, cursor)
    told = [{"id": file.id, "filename": file.filename, "bytes": file.size} for file in page.items]
    return json.dumps({"files": told, "has_more": page.has_more}, ensure_ascii=False)


async def _read_file(asking: Asking, arguments: Mapping[str, Any]) -> str:
    file = await find_file(asking.gateway.store, asking.record.principal.owner, arguments["file_id"])
    first = max(0, int(arguments.get("offset", 0)))
    data = await _bytes_of(asking.gateway, file, first, _MAX_READ)
    end = first + len(data)
    rest = "" if end >= file.size else f"\n[bytes {first} to {end} of {file.size}: go on at offset {end}]"
    return data.decode("utf-8", "replace") + rest


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}

OPERATIONS = (
    ServerOperation("list_models", "List the models that the key may use.", "/v1/models", _list_models, {}),
    ServerOperation(
        "ask_model",
        "Have a model answer a prompt.",
        "/v1/chat/completions",
        _ask_model,
        {"model": _TEXT, "prompt": _TEXT, "instructions": _TEXT, "max_tokens": _COUNT},
        ("model", "prompt"),
    ),
    ServerOperation(
        "list_files",
        "List the project's files, newest first.",
        "/v1/files",
        _list_files,
        {"limit": {**_COUNT, "maximum": _LISTED}, "after": {**_TEXT, "description": "Id of the last file seen."}},
    ),
    ServerOperation(
        "read_file",
        f"Read {_MAX_READ} bytes of a file as text, from an offset.",
        "/v1/files",
        _read_file,
        {"file_id": _TEXT, "offset": {"type": "integer", "minimum": 0}},
        ("file_id",),
    ),
)


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
    if (missing := missing_extra("the MCP server", "mcp")) is not None:
        raise ApiError(501, missing, type="server_error", code="mcp_not_installed")
    config = gateway.gateway_config
    receive = limit_body(request, config.max_body_bytes, config.body_timeout_s, "gateway.max_body_bytes")
    held, parts, more = HeldBytes(gateway.held, record), list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        held.take(len(parts[-1]))
        more = message.get("more_body", False)
    record.body_bytes = sum(map(len, parts))
    return McpAnswer(gateway, record, b"".join(parts))


def _server(asking: Asking) -> Server[Any]:
    """A server for one exchange: it knows who asks."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    offered = {each.name: each for each in OPERATIONS if asking.may_ask(each.path)}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(each) for each in offered.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text, failed = await _run(asking, offered.get(params.name), params.name, params.arguments or {}), False
        except HANDLED as error:
            text, failed = to_api_error(error).message, True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    async def list_resources(context: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        if not asking.may_ask("/v1/files"):
            return types.ListResourcesResult(resources=[])
        cursor = Cursor(limit=_LISTED, after=None if params is None else params.cursor)
        page = await list_files(asking.gateway.store, asking.record.principal.owner, cursor)
        files = [types.Resource(uri=_FILES + file.id, name=file.filename, size=file.size) for file in page.items]
        return types.ListResourcesResult(resources=files, next_cursor=page.items[-1].id if page.has_more else None)

    async def read_resource(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        check_endpoint(asking.record.principal, "/v1/files")
        file = await find_file(asking.gateway.store, asking.record.principal.owner, uri.removeprefix(_FILES))
        data = await _bytes_of(asking.gateway, file, 0, _MAX_RESOURCE)
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


async def _run(asking: Asking, operation: ServerOperation | None, name: str, arguments: Mapping[str, Any]) -> str:
    """Raises `ApiError` for a tool that there is not, or that the key may not use, and for arguments that are none."""
    if operation is None:
        raise ApiError(404, f"There is no tool {name[:64]!r}, or this key may not use it.", code="not_found")
    for each in operation.required:
        if each not in arguments:
            raise invalid_request(f"The argument {each!r} is missing.", each)
    for each, value in arguments.items():
        kind = operation.properties.get(each, {}).get("type")
        if kind is None or not isinstance(value, str if kind == "string" else int) or isinstance(value, bool):
            raise invalid_request(f"The argument {each[:64]!r} is unknown, or of another type than its schema's.", each)
    return await operation.run(asking, arguments)


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


async def _bytes_of(gateway: Gateway, file: File, first: int, count: int) -> bytes:
    """Some bytes of a file, from its byte `first` on."""
    found, seen = bytearray(), 0
    async with aclosing(read_content(gateway.store, file)) as chunks:
        async for chunk in chunks:
            begin = max(0, first - seen)
            found += chunk[begin : begin + count - len(found)]
            seen += len(chunk)
            if len(found) >= count:
                break
    return bytes(found)
