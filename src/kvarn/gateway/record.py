"""The record of a request, on its ASGI scope."""

from __future__ import annotations

import re

from starlette.types import Receive, Scope

from kvarn.answers.record import Reply, RequestRecord
from kvarn.store.ids import new_id
from kvarn.wire.dialects import dialect_of

_SCOPE_KEY = "kvarn.record"
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def new_record(scope: Scope) -> RequestRecord:
    """Make the record of a request and hang it on its ASGI scope."""
    supplied = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    own_id = new_id("")
    request_id = supplied.decode("ascii") if _SANE_ID.fullmatch(supplied) else f"req-{own_id}"
    path = route_path(scope)
    dialect = dialect_of(path, scope["headers"])
    record = RequestRecord(request_id, id=own_id, endpoint=path[:256], reply=Reply(dialect))
    scope[_SCOPE_KEY] = record
    return record


def route_path(scope: Scope) -> str:
    """The path that routing compares: what comes after `gateway.root_path`, where the proxy has left that in."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and (path + "/").startswith(root + "/") else path


async def client_left(receive: Receive) -> None:
    """Wait until a client whose body has been read leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request being answered."""
    record = scope[_SCOPE_KEY]
    assert isinstance(record, RequestRecord)
    return record
