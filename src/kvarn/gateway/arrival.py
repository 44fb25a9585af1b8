"""When a request reached this machine.

A busy event loop reads a socket, or accepts a connection, long after the bytes came. Clients feel that too, so
latencies count from the time at which the kernel had them.
"""

from __future__ import annotations

import socket
import sys
import time

from starlette.types import Scope

RECEIVED = "kvarn.received"
"""Where a connection notes the time in the ASGI state of its request."""

_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_BYTES = 56
"""The first of `struct tcp_info`: its last four are `tcpi_last_data_recv`, milliseconds since data came."""


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
