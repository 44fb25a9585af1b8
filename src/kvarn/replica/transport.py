"""The message queues that join an engine process to its supervisor and its clients.

Each direction is a PUSH socket at the sender and a PULL socket at the receiver. The receiver binds and the sender
connects: a connected PUSH socket always has a queue to write to, so a sender never waits for its peer. High-water marks
are off. Nothing may be dropped, and the engine may not block on a slow gateway, so the queue has to take what comes; it
stays bounded because each message belongs to an accepted request with a token limit, and the engine bounds those.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import zmq

from kvarn.wire.messages import FromEngine, ToEngine

SUPERVISOR_LINGER_MS = 60_000
"""An engine that fails at once says why before its supervisor, which may still be starting, reads it. It never outlives
the supervisor: see `kvarn.replica.server.parent`."""
CLIENT_LINGER_MS = 2000
"""Clients read at once, or have ended."""
_MESSAGES_AT_ONCE = 16
"""Messages handled in one turn of the event loop: when it was held up, hundreds of steps may have come."""

Context = zmq.Context[zmq.Socket[bytes]]

log = logging.getLogger(__name__)


class Outbox:
    """Sends messages to one address. For one thread; several may feed the same receiver."""

    def __init__(self, context: Context, address: str, linger_ms: int) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: ToEngine | FromEngine) -> None:
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
    """Receives what clients and the supervisor send to an engine. For one thread."""

    def __init__(self, context: Context, address: str) -> None:
        self._socket = _bound(context, address)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, wait_s: float) -> Iterator[ToEngine | UnreadableRequest]:
        """All messages that have come; waits up to `wait_s` seconds for the first one.

        A message that cannot be read is logged, and dropped where its sender waits for no answer.
        """
        if wait_s > 0:
            self._socket.poll(round(wait_s * 1000))
        for payload in _arrived(self._socket):
            try:
                yield self._decoder.decode(payload)
            except msgspec.DecodeError as error:
                log.warning("a message cannot be read", extra={"error": str(error), "bytes": len(payload)})
                with contextlib.suppress(msgspec.DecodeError):
                    sender = msgspec.msgpack.decode(payload, type=UnreadableRequest)
                    yield msgspec.structs.replace(sender, problem=str(error))

    def close(self) -> None:
        """Close; what has not been read is dropped."""
        self._socket.close(linger=0)


class ClientTransport:
    """The other end: sends to an engine and hands over what comes from it, in the running event loop, until closed.

    A message comes with each step. It is handled where the event loop learns of it: awaiting messages one by one,
    through ZMQ's own futures, took about half of what a step of few streams cost the gateway.

    Args:
        engine: ZMQ address that the engine binds and reads.
        own: ZMQ address that this process binds and the engine writes to.
        handle: Given each message.
        failed: Given the error, once, where a message cannot be read or `handle` raises; nothing is read after that.
    """

    def __init__(
        self, engine: str, own: str, handle: Callable[[FromEngine], None], failed: Callable[[Exception], None]
    ) -> None:
        self._handle = handle
        self._failed = failed
        self._context: Context = zmq.Context()
        self._from_engine = _bound(self._context, own)
        self._to_engine = Outbox(self._context, engine, 0)
        self.send = self._to_engine.send
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._reading = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._from_engine.fileno(), self._read)
        self._loop.call_soon(self._read)  # what came earlier is not signalled

    def read_rest(self) -> None:
        """Handle all that has come from an engine that ended; what cannot be read is left out."""
        for payload in _arrived(self._from_engine) if self._reading else ():
            with contextlib.suppress(msgspec.DecodeError):
                self._handle(self._decoder.decode(payload))

    def close(self) -> None:
        """Close both ends; what has not been sent is dropped. Idempotent."""
        self._stop_reading()
        self._from_engine.close(linger=0)
        self._to_engine.close(drop=True)
        self._context.term()

    def _read(self) -> None:
        if not self._reading:
            return
        handled = 0
        try:
            for payload in islice(_arrived(self._from_engine), _MESSAGES_AT_ONCE):
                self._handle(self._decoder.decode(payload))
                handled += 1
        except Exception as error:
            self._stop_reading()
            self._failed(error)
        if handled == _MESSAGES_AT_ONCE:
            self._loop.call_soon(self._read)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._from_engine.fileno())


def _bound(context: Context, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PULL)
    socket.set_hwm(0)
    socket.bind(address)
    return socket


def _arrived(socket: zmq.Socket[bytes]) -> Iterator[bytes]:
    """All that has come. ZMQ's descriptor tells of changes only, so it must be read until nothing is left."""
    with contextlib.suppress(zmq.Again):
        while not socket.closed:
            yield socket.recv(zmq.NOBLOCK)
