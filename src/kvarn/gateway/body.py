"""Reading a request's body: bounded in bytes and in time, and decoded (`content-encoding: gzip` or `deflate`)."""

from __future__ import annotations

import asyncio
import zlib
from functools import partial
from typing import Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from kvarn.answers.context import ServingContext
from kvarn.answers.held_bytes import HeldBytes, memory_of
from kvarn.catalog.text_pool import INLINE_BYTES
from kvarn.clock import SYSTEM_CLOCK
from kvarn.gateway.record import record_of
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import decode_body, validate

RequestT = TypeVar("RequestT", bound=BaseModel)

_MIN_BYTES_PER_S = 64 * 1024  # of the slowest body that is taken


class JsonBody(Generic[RequestT]):
    """FastAPI dependency that reads and validates a JSON body of up to `gateway.max_body_bytes`."""

    def __init__(self, model: type[RequestT]) -> None:
        self.model = model

    async def __call__(self, request: Request) -> RequestT:
        """Read the body; the memory it takes is held until the request's record is closed: the body's own size while it
        comes, then that of the parsed request, which lives as long as its answer.

        Raises:
            ApiError: 400 (empty or invalid), 408 (too slow), 413 (too large), 415 (not JSON), 429 or 503 (no memory
                left, or it would be answered too late: by its length, so before it is read where that is announced).
            ClientDisconnect: The client left in the middle of its body.
        """
        gateway: ServingContext = request.app.state.gateway
        check_length, record = request.app.state.check_length, record_of(request.scope)
        if not record.reply.dialect.any_body_type or "origin" in request.headers:
            _require_json(request)
        config = gateway.gateway_config
        receive = limit_body(request, config.max_body_bytes, config.body_timeout_s, "gateway.max_body_bytes")
        announced = request.headers.get("content-length")
        if announced is not None:
            check_length(record, int(announced))
        held = HeldBytes(gateway.held, record)
        record.body_bytes = len(body := await read_body(receive, held))
        record.timeline.received_s = record.timeline.mark("read", {"bytes": len(body)})
        if not body:
            raise invalid_request("The request body is empty: send a JSON object.", code="invalid_json")
        if announced is None:
            check_length(record, len(body))
        parse = partial(_parse, self.model, body)
        parsed, size, warnings = await gateway.text.run(record.principal.organization_id, len(body), parse)
        held.resize(size)
        record.reply.warnings += warnings
        record.timeline.mark("parsed")
        return parsed


async def read_body(receive: Receive, held: HeldBytes) -> bytes:
    """Read a body to its end; `held` counts its memory as it comes. Raises `ClientDisconnect`, and as both do."""
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        held.take(len(parts[-1]))
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _parse(model: type[RequestT], body: bytes) -> tuple[RequestT, int, list[str]]:
    """The request, the memory it takes, and what is ignored of it."""
    data = decode_body(body)
    warnings: list[str] = []
    parsed = validate(model, data, warnings)
    # A small one takes no more than its connection does besides.
    return parsed, len(body) if len(body) <= INLINE_BYTES else memory_of(data), warnings


def limit_body(request: Request, max_bytes: int, timeout_s: float, setting: str) -> Receive:
    """ASGI's `receive` for a body of `max_bytes` at most, compressed and plain; `setting` is what says so. It has
    `timeout_s` seconds, and one more for each 64 KiB that came: a client that sends next to nothing is not waited for.

    Raises:
        ApiError: 413, a larger body is announced; 415, its encoding is not known; `receive` raises 408 (too slow), 413,
            or 400 (not encoded as announced).
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


_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_ACCEPTED = {"accept-encoding": "gzip, deflate"}
_PIECE_BYTES = 256 * 1024
"""Bytes that are made at once: they are counted, and others are served, before there are more."""


def decoding(request: Request, receive: Receive) -> Receive:
    """ASGI's `receive` for the plain body, in small pieces however much one that came decodes to: the caller sees in
    time that it is too large. Raises `ApiError`: 415, an unknown encoding; `receive` raises 400 for a body that is not
    so encoded."""
    values = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    encodings = [value.strip() for value in values if value.strip() not in ("", "identity")]
    if not encodings:
        return receive
    if len(encodings) > 1 or encodings[0] not in _WINDOW_BITS:
        shown = ", ".join(encodings)[:80]
        message = f"The content encoding of the request is {shown!r}: send it plain, or as 'gzip' or 'deflate'."
        raise ApiError(415, message, code="unsupported_content_encoding", headers=_ACCEPTED)
    return _Decoding(receive, encodings[0]).receive


class _Decoding:
    def __init__(self, receive: Receive, encoding: str) -> None:
        self._receive = receive
        self._encoding = encoding
        self._decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
        self._rest = b""  # bytes that have come and are not decoded yet
        self._pending = False  # whether more can be made of what has come
        self._more_body = True

    async def receive(self) -> Message:
        if self._pending:
            await asyncio.sleep(0)
        else:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message
            self._rest, self._more_body = message.get("body", b""), message.get("more_body", False)
        data = self._decode()
        # zlib may hold back a little of what does not fit, though it has taken all that came.
        self._pending = bool(self._rest) or len(data) == _PIECE_BYTES
        more_body = self._pending or self._more_body
        if not more_body and not self._decoder.eof:
            raise _not_encoded(self._encoding, "it ends too early")
        return {"type": "http.request", "body": data, "more_body": more_body}

    def _decode(self) -> bytes:
        if self._decoder.eof and self._rest:
            if self._encoding == "deflate":
                raise _not_encoded(self._encoding, "there are bytes behind its end")
            self._decoder = zlib.decompressobj(_WINDOW_BITS[self._encoding])  # RFC 1952, 2.2: one member or several
        try:
            data = self._decoder.decompress(self._rest, _PIECE_BYTES)
        except zlib.error as error:
            raise _not_encoded(self._encoding, str(error)) from None
        self._rest = self._decoder.unused_data if self._decoder.eof else self._decoder.unconsumed_tail
        return data


def _not_encoded(encoding: str, why: str) -> ApiError:
    return invalid_request(f"The request body is not valid {encoding}: {why}.", code="invalid_encoding")
