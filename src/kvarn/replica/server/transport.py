"""The engine's end of the message queues: one that all others send to, one to its supervisor, one to each client.

Each direction is a PUSH socket at the sender and a PULL socket at the receiver. The receiver binds and the sender
connects: a connected PUSH socket always has a queue to write to, so a sender never waits for its peer. High-water marks
are off. Nothing may be dropped, and the engine may not block on a slow gateway, so the queue has to take what comes; it
stays bounded because each message belongs to an accepted request with a token limit, and the engine bounds those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import zmq

from kvarn.wire.messages import FromEngine, ToEngine

SUPERVISOR_LINGER_MS = 60_000
"""An engine that fails at once says why before its supervisor, which may still be starting, reads it. It never outlives
the supervisor: see `kvarn.replica.server.parent`."""
CLIENT_LINGER_MS = 2000
"""Clients read at once, or have ended."""

log = logging.getLogger(__name__)


class Outbox:
    """Sends messages to one address. For one thread; several may feed the same receiver."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, linger_ms: int) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: FromEngine) -> None:
        """Queue a message; never waits."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self, *, drop: bool = False) -> None:
        """Close; what is queued lingers, unless dropped."""
        self._socket.close(linger=0 if drop else None)


class UnreadableRequest(msgspec.Struct, frozen=True):
    """What can be made out of a message that is no valid `ToEngine`."""

    request_id: str
    gateway: int = 0
    problem: str = ""


class Inbox:
    """Receives what clients and the supervisor send. For one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, wait_s: float) -> Iterator[ToEngine | UnreadableRequest]:
        """All messages that have come; waits up to `wait_s` seconds for the first one.

        A message that cannot be read is logged, and dropped where its sender waits for no answer.
        """
        if wait_s > 0:
            self._socket.poll(round(wait_s * 1000))
        while True:
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield self._decoder.decode(payload)
            except msgspec.DecodeError as error:
                log.warning("a message cannot be read", extra={"error": str(error), "bytes": len(payload)})
                try:
                    sender = msgspec.msgpack.decode(payload, type=UnreadableRequest)
                except msgspec.DecodeError:
                    continue
                yield msgspec.structs.replace(sender, problem=str(error))

    def close(self) -> None:
        """Close; what has not been read is dropped."""
        self._socket.close(linger=0)
