"""Reading a request's body: bounded in bytes and in time, refused before it is read to its end."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from kvarn.gateway.record import record_of
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import parse_request

RequestT = TypeVar("RequestT", bound=BaseModel)


class BodyRefusedError(ApiError):
    """The body will not be read to its end; the connection is closed after the answer."""


async def read_request(request: Request, model: type[RequestT], max_bytes: int, timeout_s: float) -> RequestT:
    """Read and validate a JSON body.

    Raises:
        ApiError: 400 (empty or invalid), 408 (too slow), 413 (too large) or 415 (not JSON).
        ClientDisconnect: The client left in the middle of its body.
    """
    _require_json(request)
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read(request.receive, max_bytes)
    except TimeoutError:
        message = f"The request body did not arrive within {timeout_s:g} s."
        raise BodyRefusedError(408, message, code="request_timeout") from None
    record_of(request.scope).body_bytes = len(body)
    if not body:
        raise invalid_request("The request body is empty: send a JSON object.", code="invalid_json")
    return parse_request(model, body)


async def _read(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        shown = repr(content_type[:80]) if content_type else "none"
        message = f"The content type of the request is {shown}: send 'content-type: application/json'."
        raise ApiError(415, message, code="unsupported_media_type")


def _too_large(max_bytes: int) -> BodyRefusedError:
    message = f"The request body is larger than {max_bytes} bytes (the server's gateway.max_body_bytes)."
    return BodyRefusedError(413, message, code="request_too_large")
