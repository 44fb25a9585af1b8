"""A request as routes are given it: one spelling of each path, and GET for HEAD."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Message, Scope, Send

ANSWERS_HEAD = "kvarn.answers_head"  # key of a scope whose answer has no body, so that none is made
_SLASHES = re.compile(rb"/{2,}")


def plain_request(scope: Scope) -> Scope:
    """The request with its path as routes spell it, so that what guards paths sees no other: slashes are not doubled,
    and none is at the end (those that the client has escaped belong to a name and stay). HEAD is answered as GET is,
    see `without_body`.
    """
    raw: bytes = scope["raw_path"]
    plain = _SLASHES.sub(b"/", raw).rstrip(b"/") or b"/"
    changes: dict[str, object] = {"method": "GET", ANSWERS_HEAD: True} if scope["method"] == "HEAD" else {}
    if plain != raw:
        changes |= {"raw_path": plain, "path": unquote(plain.decode("latin-1"))}
    return {**scope, **changes} if changes else scope


def without_body(send: Send) -> Send:
    """ASGI's `send` for the answer to HEAD: it ends with the headers, whatever follows them."""

    async def send_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return send_headers
