"""A request on its ASGI scope: its record, one spelling of its path, GET for HEAD."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Message, Receive, Scope, Send

from kvarn.answers.record import Reply, RequestRecord
from kvarn.answers.sessions import hints_of_headers, take_hints
from kvarn.store.ids import new_id
from kvarn.wire.dialects import dialect_of
from kvarn.wire.openai.cache import cache_options_of_headers

ANSWERS_HEAD = "kvarn.answers_head"  # key of a scope whose answer has no body, so that none is made
ASKED_PATH = "kvarn.asked_path"  # key of a scope whose path was spelled otherwise: the raw path as it was asked for
_SLASHES = re.compile(rb"/{2,}")
_SCOPE_KEY = "kvarn.record"
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def new_record(scope: Scope) -> RequestRecord:
    """Make the record of a request and hang it on its ASGI scope."""
    supplied = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    own_id = new_id("")
    request_id = supplied.decode("ascii") if _SANE_ID.fullmatch(supplied) else f"req-{own_id}"
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if root and (path + "/").startswith(root + "/"):  # routing compares what comes after `gateway.root_path`
        path = path.removeprefix(root)
    dialect = dialect_of(path, scope["headers"])
    record = RequestRecord(request_id, id=own_id, endpoint=path[:256], reply=Reply(dialect))
    take_hints(record, hints_of_headers(scope["headers"]))
    record.cache = cache_options_of_headers(scope["headers"])
    scope[_SCOPE_KEY] = record
    return record


async def client_left(receive: Receive) -> None:
    """Wait until a client whose body has been read leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request being answered."""
    record = scope[_SCOPE_KEY]
    assert isinstance(record, RequestRecord)
    return record


def plain_request(scope: Scope) -> Scope:
    """The request with its path as routes spell it, so that what guards paths sees no other: slashes are not doubled,
    and none is at the end (those that the client has escaped belong to a name and stay). HEAD is answered as GET is,
    see `without_body`.
    """
    raw: bytes = scope["raw_path"]
    plain = _SLASHES.sub(b"/", raw).rstrip(b"/") or b"/"
    changes: dict[str, object] = {"method": "GET", ANSWERS_HEAD: True} if scope["method"] == "HEAD" else {}
    if plain != raw:
        changes |= {"raw_path": plain, "path": unquote(plain.decode("latin-1")), ASKED_PATH: raw}
    return {**scope, **changes} if changes else scope


def without_body(send: Send) -> Send:
    """ASGI's `send` for the answer to HEAD: it ends with the headers, whatever follows them."""

    async def send_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return send_headers
