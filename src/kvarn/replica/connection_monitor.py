"""Tells when a TCP connection of a ZMQ socket has broken. ZMQ makes it again by itself, and what was under way on it is
lost: only the socket's monitor says so."""

from __future__ import annotations

import contextlib

import zmq
from zmq.utils.monitor import recv_monitor_message

_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class ConnectionMonitor:
    """Follows the connections of one socket. Made before the socket binds or connects, it misses none.

    A connection counts from its handshake on: one that ends before is of a process without a key. (One that was open
    at the handshake of another and then sends what is no ZMTP is taken for a loss: of its end ZMQ says no more.)
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket.get_monitor_socket(_EVENTS)
        self.fileno = self._socket.fileno
        """Readable when there may be news; ZMQ's descriptors tell of changes only, so `read` comes first."""
        self.broken = False
        self.made_again = False
        """After it broke: what the socket receives from then on has a gap before it."""
        self._open: set[int] = set()  # descriptors of all connections
        self._trusted: set[int] = set()
        """Descriptors that were open at a handshake: ZMQ does not say which of them it was."""
        self._ends_in_handshake = False
        """The connection that is lost next has had no handshake: ZMQ tells of both in a row."""

    def read(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                event = recv_monitor_message(self._socket, zmq.NOBLOCK)
                self._take(event["event"], event["value"])

    def close(self) -> None:
        self._socket.close(linger=0)

    def _take(self, event: int, descriptor: int) -> None:
        match event:
            case zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED:
                self._open.add(descriptor)
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._trusted |= self._open
                self.made_again = self.broken
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._ends_in_handshake = True
            case zmq.EVENT_DISCONNECTED:
                self.broken = self.broken or (descriptor in self._trusted and not self._ends_in_handshake)
                self._ends_in_handshake = False
                self._open.discard(descriptor)
                self._trusted.discard(descriptor)
