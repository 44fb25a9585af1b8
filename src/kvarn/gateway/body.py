"""Reading a request's body: bounded in bytes and in time, refused before it is read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from kvarn.answers.held_bytes import ByteBudget, HeldBytes, memory_of
from kvarn.answers.record import RequestRecord
from kvarn.catalog.text_pool import INLINE_BYTES, TextPool
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.gateway import GatewayConfig
from kvarn.gateway.content_encoding import decoding
from kvarn.gateway.record import record_of
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import decode_body, validate

RequestT = TypeVar("RequestT", bound=BaseModel)

_MIN_BYTES_PER_S = 64 * 1024  # of the slowest body that is taken


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
        if not record_of(request.scope).reply.dialect.any_body_type or "origin" in request.headers:
            _require_json(request)
        max_bytes, timeout_s = self._config.max_body_bytes, self._config.body_timeout_s
        record = record_of(request.scope)
        held = HeldBytes(self._held, record)
        parts = []
        receive = limit_body(request, max_bytes, timeout_s, "gateway.max_body_bytes")
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            held.take(len(parts[-1]))
            more = message.get("more_body", False)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        record.body_bytes = len(body)
        record.timeline.mark_read(len(body))
        if not body:
            raise invalid_request("The request body is empty: send a JSON object.", code="invalid_json")
        if self._check is not None:
            self._check(record, body)
        tenant = record.principal.organization_id
        parsed, size, warnings = await self._text.run(tenant, len(body), lambda: _parse(model, body))
        held.become(size)
        record.reply.warnings += warnings
        record.timeline.mark("parsed")
        return parsed


def _parse(model: type[RequestT], body: bytes) -> tuple[RequestT, int, list[str]]:
    """The request, the memory it takes, and what is ignored of it."""
    data = decode_body(body)
    warnings: list[str] = []
    parsed = validate(model, data, warnings)
    # A small one takes no more than its connection does besides.
    return parsed, len(body) if len(body) <= INLINE_BYTES else memory_of(data), warnings


def limit_body(request: Request, max_bytes: int, timeout_s: float, setting: str) -> Receive:
    """ASGI's `receive` for a body of `max_bytes` at most, compressed and plain; `setting` is what says so.

    It has `timeout_s` seconds, and one more for each 64 KiB that came: a client that sends next to nothing is not
    waited for.

    Raises:
        ApiError: 413, a larger body is announced; 415, its encoding is not known; `receive` itself raises 408 (too
            slow), 413, or 400 (not encoded as announced).
    """

    def check_size(size: int) -> None:
        if size > max_bytes:
            message = f"The request body is larger than {max_bytes} bytes (the server's {setting})."
            raise ApiError(413, message, code="request_too_large")

    check_size(int(request.headers.get("content-length", 0)))
    deadline, size = SYSTEM_CLOCK.now() + timeout_s, 0

    async def receive_bytes() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout_at(deadline + size / _MIN_BYTES_PER_S):
                message = await request.receive()
        except TimeoutError:
            why = f"The request body did not arrive within {timeout_s:g} s, and a second more for each 64 KiB."
            raise ApiError(408, why, code="request_timeout") from None
        size += len(message.get("body", b""))
        check_size(size)
        return message

    receive = decoding(request, receive_bytes)
    if receive is receive_bytes:
        return receive
    decoded = 0

    async def receive_decoded() -> Message:
        nonlocal decoded
        message = await receive()
        decoded += len(message.get("body", b""))
        check_size(decoded)
        return message

    return receive_decoded


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        shown = repr(content_type[:80]) if content_type else "none"
        message = f"The content type of the request is {shown}: send 'content-type: application/json'."
        raise ApiError(415, message, code="unsupported_media_type")
