"""The record of a request on its ASGI scope, and when the request reached this machine.

A busy event loop reads a socket, or accepts a connection, long after the bytes came. Clients feel that too, so
latencies count from the time at which the kernel had them.
"""

from __future__ import annotations

import re
import socket
import sys
import time

from starlette.types import Receive, Scope

from kvarn.serving.record import RequestRecord
from kvarn.store.ids import new_id

RECEIVED = "kvarn.received"
"""Where a connection notes the time in the ASGI state of its request."""

_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_BYTES = 56
"""The first of `struct tcp_info`: its last four are `tcpi_last_data_recv`, milliseconds since data came."""

_SCOPE_KEY = "kvarn.record"
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def new_record(scope: Scope) -> RequestRecord:
    """Make the record of a request and hang it on its ASGI scope."""
    supplied = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    own_id = new_id("")
    request_id = supplied.decode("ascii") if _SANE_ID.fullmatch(supplied) else f"req-{own_id}"
    record = RequestRecord(request_id, received_at(scope), id=own_id, endpoint=route_path(scope)[:256])
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


def arrived_at(connection: socket.socket | None) -> float:
    """Monotonic seconds at which the latest data of a TCP connection came; now, where the system does not say."""
    now = time.monotonic()
    if connection is None or _TCP_INFO is None or connection.fileno() < 0:
        return now
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES)
    return now - int.from_bytes(info[_BYTES - 4 :], sys.byteorder) / 1000


def received_at(scope: Scope) -> float:
    """Monotonic seconds at which the latest part of a request came: its headers, or all of its body once that has been
    read. Now, where the connection does not say."""
    noted: float | None = scope.get("state", {}).get(RECEIVED)
    return time.monotonic() if noted is None else noted
