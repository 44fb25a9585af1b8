"""The engine's end of the message queues: one that all others send to, one to its supervisor, one to each client.

Each direction is a PUSH socket at the sender and a PULL socket at the receiver. The receiver binds and the sender
connects: a connected PUSH socket always has a queue to write to, so a sender never waits for its peer. High-water marks
are off. Nothing may be dropped, and the engine may not block on a slow gateway, so the queue has to take what comes; it
stays bounded because each message belongs to an accepted request with a token limit, and the engine bounds those.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import zmq

from kvarn.wire.messages import FromEngine, RefusalReason, Refused, ToEngine

_SUPERVISOR_LINGER_MS = 60_000
"""An engine that fails at once says why before its supervisor, which may still be starting, listens. It never outlives
the supervisor: see `kvarn.replica.server.parent`."""
_CLIENT_LINGER_MS = 2000
"""Clients listen, or are gone."""

log = logging.getLogger(__name__)


class Outbox:
    """Sends messages of the engine to one address. For one thread; several may feed the same receiver."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, linger_ms: int) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    @classmethod
    def to_supervisor(cls, context: zmq.Context[zmq.Socket[bytes]], address: str) -> Outbox:
        """What is queued waits until the supervisor listens."""
        return cls(context, address, _SUPERVISOR_LINGER_MS)

    def send(self, message: FromEngine) -> None:
        """Queue a message; never waits."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self, *, drop: bool = False) -> None:
        """Close; what is queued is sent by then or lingers, unless dropped."""
        self._socket.close(linger=0 if drop else None)


class EngineTransport:
    """Receives what clients and the supervisor ask, and sends clients what the engine answers. For one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], inbox: str) -> None:
        self._context = context
        self._inbox = context.socket(zmq.PULL)
        self._inbox.set_hwm(0)
        self._inbox.bind(inbox)
        self._outboxes: dict[int, Outbox] = {}
        """By the number of the client's gateway process."""
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    @property
    def gateways(self) -> Collection[int]:
        """Numbers of the gateway processes that can be sent to."""
        return self._outboxes.keys()

    def connect(self, gateway: int, address: str) -> None:
        """Open a queue to a gateway process."""
        self.disconnect(gateway)
        self._outboxes[gateway] = Outbox(self._context, address, _CLIENT_LINGER_MS)

    def disconnect(self, gateway: int) -> None:
        """Close the queue to a gateway process that is gone; nobody reads what is in it. Idempotent."""
        outbox = self._outboxes.pop(gateway, None)
        if outbox is not None:
            outbox.close(drop=True)

    def send(self, message: FromEngine, gateway: int) -> None:
        """Queue a message for a gateway process, unless that is gone; never waits."""
        outbox = self._outboxes.get(gateway)
        if outbox is not None:
            outbox.send(message)

    def receive(self, wait_s: float) -> Iterator[ToEngine]:
        """All messages that have come; waits up to `wait_s` seconds for the first one.

        A message that cannot be read is logged and, where its request id can be made out, refused as invalid.
        """
        if wait_s > 0:
            self._inbox.poll(round(wait_s * 1000))
        while True:
            try:
                payload = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield self._decoder.decode(payload)
            except msgspec.DecodeError as error:
                self._refuse_unreadable(payload, error)

    def close(self) -> None:
        """Close both ends; what is queued lingers."""
        self._inbox.close(linger=0)
        for outbox in self._outboxes.values():
            outbox.close()

    def _refuse_unreadable(self, payload: bytes, error: msgspec.DecodeError) -> None:
        request_id, gateway = _sender_of(payload)
        log.warning(
            "a message from the gateway cannot be read",
            extra={"error": str(error), "bytes": len(payload), "request_id": request_id},
        )
        if request_id is not None:
            message = f"the engine cannot read this request: {error}"
            self.send(Refused(request_id=request_id, reason=RefusalReason.INVALID, message=message), gateway)


def _sender_of(payload: bytes) -> tuple[str | None, int]:
    """Request id and number of the gateway process, as far as they can be made out."""
    try:
        fields: Any = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:
        return None, 0
    if not isinstance(fields, dict):
        return None, 0
    request_id, gateway = fields.get("request_id"), fields.get("gateway", 0)
    return request_id if isinstance(request_id, str) else None, gateway if isinstance(gateway, int) else 0
