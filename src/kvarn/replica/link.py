"""The engine's end of the two message queues that join it to the gateway.

Each direction is a PUSH socket at the sender and a PULL socket at the receiver. The receiver binds and the sender
connects: a connected PUSH socket always has a queue to write to, so a sender never waits for its peer. High-water marks
are off. Nothing may be dropped, and the engine may not block on a slow gateway, so the queue has to take what comes; it
stays bounded because each message belongs to an accepted request with a token limit, and the engine bounds those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

from kvarn.wire.messages import FromEngine, RefusalReason, Refused, ToEngine

_LINGER_MS = 60_000
"""An engine that fails at once says why before the gateway, which may still be starting, listens. It never outlives the
gateway: see `Handover`."""
log = logging.getLogger(__name__)


class EngineLink:
    """Receives what the gateway asks and sends what the engine answers. For one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], inbox: str, outbox: str) -> None:
        self._inbox = context.socket(zmq.PULL)
        self._inbox.set_hwm(0)
        self._inbox.bind(inbox)
        self._outbox = OutLink(context, outbox)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        """Queue a message for the gateway; never waits."""
        self._outbox.send(message)

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
        """Close both ends; what is queued waits for the gateway to listen."""
        self._inbox.close(linger=0)
        self._outbox.close()

    def _refuse_unreadable(self, payload: bytes, error: msgspec.DecodeError) -> None:
        request_id = _request_id_in(payload)
        log.warning(
            "a message from the gateway cannot be read",
            extra={"error": str(error), "bytes": len(payload), "request_id": request_id},
        )
        if request_id is not None:
            message = f"the engine cannot read this request: {error}"
            self.send(Refused(request_id=request_id, reason=RefusalReason.INVALID, message=message))


class OutLink:
    """A sender of messages to the gateway. For one thread; several may feed the same receiver."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: FromEngine) -> None:
        """Queue a message for the gateway; never waits."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        """Close; what is queued waits for the gateway to listen."""
        self._socket.close()


def _request_id_in(payload: bytes) -> str | None:
    try:
        fields: Any = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:
        return None
    request_id = fields.get("request_id") if isinstance(fields, dict) else None
    return request_id if isinstance(request_id, str) else None
