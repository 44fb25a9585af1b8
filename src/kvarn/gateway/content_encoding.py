"""Request bodies that come compressed: `content-encoding: gzip` or `deflate`."""

from __future__ import annotations

import asyncio
import zlib

from starlette.requests import Request
from starlette.types import Message, Receive

from kvarn.wire.openai.errors import ApiError, invalid_request

_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_ACCEPTED = {"accept-encoding": "gzip, deflate"}
_PIECE_BYTES = 256 * 1024
"""Bytes that are made at once: whoever reads them counts them, and others are served, before there are more."""


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
