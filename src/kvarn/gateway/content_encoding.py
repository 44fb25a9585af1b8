"""Request bodies that come compressed: `content-encoding: gzip` or `deflate`."""

from __future__ import annotations

import zlib

from starlette.requests import Request
from starlette.types import Message, Receive

from kvarn.wire.openai.errors import ApiError, invalid_request

_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_ACCEPTED = {"accept-encoding": "gzip, deflate"}


def decoding(request: Request, receive: Receive, max_bytes: int) -> Receive:
    """ASGI's `receive` for the body that `receive` gives as it was before it was compressed.

    No more than one byte beyond `max_bytes` of a message is ever made of it: who counts sees that it is too large.

    Raises:
        ApiError: 415, an encoding that is not known; `receive` itself raises 400 for a body that is not so encoded.
    """
    encodings = [each for each in _listed(request) if each != "identity"]
    if not encodings:
        return receive
    if len(encodings) > 1 or encodings[0] not in _WINDOW_BITS:
        shown = ", ".join(encodings)[:80]
        message = f"The content encoding of the request is {shown!r}: send it plain, or as 'gzip' or 'deflate'."
        raise ApiError(415, message, code="unsupported_content_encoding", headers=_ACCEPTED)
    encoding = encodings[0]
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding])

    async def receive_decoded() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message
        try:
            data = decoder.decompress(message.get("body", b""), max_bytes + 1)
        except zlib.error as error:
            raise _not_encoded(encoding, str(error)) from None
        if decoder.unused_data:
            raise _not_encoded(encoding, "there are bytes behind its end")
        if not message.get("more_body", False) and len(data) <= max_bytes and not decoder.eof:
            raise _not_encoded(encoding, "it ends too early")
        return {**message, "body": data}

    return receive_decoded


def _listed(request: Request) -> list[str]:
    values = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    return [value.strip() for value in values if value.strip()]


def _not_encoded(encoding: str, why: str) -> ApiError:
    return invalid_request(f"The request body is not valid {encoding}: {why}.", code="invalid_encoding")
