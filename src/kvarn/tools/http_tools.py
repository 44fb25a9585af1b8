"""Calls of an API that an OpenAPI document describes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx

from kvarn.tools.addresses import AddressRefusedError
from kvarn.tools.http_client import SafeHttp, ToolServerError, check_url
from kvarn.tools.openapi import MAX_DOCUMENT_BYTES, DocumentError, Operation, operations_of, request_of
from kvarn.tools.server import ToolServer, http_error, protocol_error, tool_error

_SHOWN_ERROR = 500
_INVALID = -32602
_TEXTS = ("text/", "application/json", "application/xml", "application/problem+json")


async def read_operations(server: ToolServer, http: SafeHttp) -> list[Operation]:
    """The operations of a server's document. Raises `ToolCallError`."""
    document = server.document if server.document is not None else await fetch_document(server, http)
    try:
        return operations_of(document, server.url)
    except DocumentError as error:
        raise protocol_error(_INVALID, f"the document of {server.label!r} cannot be used: {error}") from None


async def fetch_document(server: ToolServer, http: SafeHttp) -> dict[str, Any]:
    """The document at a server's URL. Raises `ToolCallError`."""
    status, _, body = await exchange(server, http, "GET", server.url, max_bytes=MAX_DOCUMENT_BYTES)
    try:
        document = json.loads(body) if status == httpx.codes.OK else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise http_error(status, f"{server.label!r} has no OpenAPI document in JSON at its URL (HTTP {status})")
    return document


async def call_operation(server: ToolServer, http: SafeHttp, operation: Operation, arguments: Mapping[str, Any]) -> str:
    """The answer of an operation, as a text. Raises `ToolCallError`."""
    try:
        request = request_of(operation, arguments)
    except ValueError as error:
        raise tool_error(str(error)) from None
    content = json.dumps(request.body, ensure_ascii=False).encode() if request.has_body else None
    status, kind, body = await exchange(server, http, request.method, request.url, content)
    text = body.decode("utf-8", "replace") if _is_text(kind) else f"[{kind or 'no type'}, {len(body)} bytes: not shown]"
    if status >= httpx.codes.BAD_REQUEST:
        raise http_error(status, f"HTTP {status}: {text[:_SHOWN_ERROR]}")
    return text


async def exchange(
    server: ToolServer, http: SafeHttp, method: str, url: str, content: bytes | None = None, **limits: int
) -> tuple[int, str, bytes]:
    """Status, media type and body of an answer, within the server's time. The operator's trust holds for the host that
    the configuration names, not for others that a document does. Raises `ToolCallError`."""
    headers = {"accept": "application/json, text/*;q=0.9"} | dict(server.headers)
    if content is not None:
        headers["content-type"] = "application/json"
    try:
        check_url(url)
        trusted = server.trusted and httpx.URL(url).host == httpx.URL(server.url).host
        async with (
            asyncio.timeout(server.timeout_s),
            http.client(headers=headers, trusted=trusted, **limits) as client,
        ):
            response = await client.request(method, url, content=content)
            return response.status_code, response.headers.get("content-type", ""), response.content
    except TimeoutError:
        raise http_error(504, f"{server.label!r} took more than {server.timeout_s:g} seconds") from None
    except AddressRefusedError as error:
        raise http_error(403, str(error)) from None
    except ToolServerError as error:
        raise http_error(error.status or 502, str(error)) from None


def _is_text(kind: str) -> bool:
    plain = kind.partition(";")[0].strip().lower()
    return plain.startswith(_TEXTS) or plain.endswith("+json")
