"""Reading a request's body: bounded in bytes and in time, refused before it is read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from kvarn.config.schema import GatewayConfig
from kvarn.gateway.record import received_at, record_of
from kvarn.serving.held_bytes import BodyRefusedError, ByteBudget, HeldBytes, hold_bytes, memory_of
from kvarn.serving.record import RequestRecord
from kvarn.serving.text_pool import INLINE_BYTES, TextPool
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import decode_body, read_fields

RequestT = TypeVar("RequestT", bound=BaseModel)

_MIN_BYTES_PER_S = 64 * 1024
"""Slowest upload that is taken, once its time to start is over."""


class BodyReader:
    """Reads JSON bodies.

    Args:
        config: How large they may be, one by one and together, and how long they may take.
        text: Where long ones are parsed.
        held: Memory that all together may take.
        check: May refuse a request whose body has come, before it is parsed.
    """

    def __init__(
        self,
        config: GatewayConfig,
        text: TextPool,
        held: ByteBudget,
        check: Callable[[RequestRecord, bytes], None] | None = None,
    ) -> None:
        self._held = held
        self._config = config
        self._text = text
        self._check = check

    async def read(self, request: Request, model: type[RequestT]) -> RequestT:
        """Read and validate a JSON body; the memory it takes is held until the request's record is closed.

        That is the body's own size while it comes, then what the request made of it takes, which lives as long as its
        answer.

        Raises:
            ApiError: 400 (empty or invalid), 408 (too slow), 413 (too large), 415 (not JSON), 429 or 503 (no memory
                left, or it would be answered too late).
            ClientDisconnect: The client left in the middle of its body.
        """
        _require_json(request)
        max_bytes, timeout_s = self._config.max_body_bytes, self._config.body_timeout_s
        declared = request.headers.get("content-length")
        if declared is not None and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        record = record_of(request.scope)
        held = hold_bytes(self._held, record)
        try:
            async with asyncio.timeout(timeout_s):
                body = await _read(request.receive, max_bytes, held)
        except TimeoutError:
            message = f"The request body did not arrive within {timeout_s:g} s."
            raise BodyRefusedError(408, message, code="request_timeout") from None
        record.body_bytes, record.received = len(body), received_at(request.scope)
        if not body:
            raise invalid_request("The request body is empty: send a JSON object.", code="invalid_json")
        if self._check is not None:
            self._check(record, body)
        tenant = record.principal.organization_id
        parsed, size, warnings = await self._text.run(tenant, len(body), lambda: _parse(model, body))
        held.become(size)
        record.warnings += warnings
        return parsed


def _parse(model: type[RequestT], body: bytes) -> tuple[RequestT, int, list[str]]:
    """The request, the memory it takes, and what is ignored of it."""
    data = decode_body(body)
    warnings: list[str] = []
    parsed = read_fields(model, data, warnings)
    # A small one takes no more than its connection does besides.
    return parsed, len(body) if len(body) <= INLINE_BYTES else memory_of(data), warnings


async def _read(receive: Receive, max_bytes: int, held: HeldBytes) -> bytes:
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
        held.take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_stream(request: Request, max_bytes: int, timeout_s: float) -> AsyncGenerator[bytes, None]:
    """A body piece by piece, as it comes; for what is too large to be held in memory.

    It has `timeout_s` seconds, and one more for each 64 KiB that came: the longest body that is taken takes a bounded
    time, and a client that sends next to nothing is not waited for.

    Raises:
        ApiError: 408 (too slow) or 413 (too large).
        ClientDisconnect: The client left in the middle of its body.
    """
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > max_bytes:
        raise _too_large(max_bytes, "retention.max_file_bytes")
    clock, size = asyncio.get_running_loop().time, 0
    began = clock()
    more = True
    while more:
        try:
            async with asyncio.timeout_at(began + timeout_s + size / _MIN_BYTES_PER_S):
                message = await request.receive()
        except TimeoutError:
            why = f"The request body came slower than {_MIN_BYTES_PER_S} bytes a second."
            raise BodyRefusedError(408, why, code="request_timeout") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes, "retention.max_file_bytes")
        if part:
            yield part


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        shown = repr(content_type[:80]) if content_type else "none"
        message = f"The content type of the request is {shown}: send 'content-type: application/json'."
        raise ApiError(415, message, code="unsupported_media_type")


def _too_large(max_bytes: int, setting: str = "gateway.max_body_bytes") -> BodyRefusedError:
    message = f"The request body is larger than {max_bytes} bytes (the server's {setting})."
    return BodyRefusedError(413, message, code="request_too_large")
