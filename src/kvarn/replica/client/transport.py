"""The other end of the message queues that join a process to an engine; see `kvarn.replica.server.transport`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import zmq

from kvarn.wire.messages import FromEngine, ToEngine

_MESSAGES_AT_ONCE = 16
"""Messages handled in one turn of the event loop: when it was held up, hundreds of steps may have come."""


class ClientTransport:
    """Sends to an engine and hands over what comes from it, in the running event loop, until closed.

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
        self._context = zmq.Context()
        self._from_engine = self._context.socket(zmq.PULL)
        self._from_engine.set_hwm(0)
        self._from_engine.bind(own)
        self._to_engine = self._context.socket(zmq.PUSH)
        self._to_engine.set_hwm(0)
        self._to_engine.setsockopt(zmq.RECONNECT_IVL, 10)
        self._to_engine.connect(engine)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._reading = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._from_engine.fileno(), self._read)
        self._loop.call_soon(self._read)  # what came earlier is not signalled

    def send(self, message: ToEngine) -> None:
        """Queue a message for the engine; never waits."""
        self._to_engine.send(self._encoder.encode(message), zmq.NOBLOCK)

    def read_rest(self) -> int:
        """Handle all that has come from an engine that ended; what cannot be read is left out. Returns how many."""
        count = 0
        for payload in self._arrived() if self._reading else ():
            with contextlib.suppress(msgspec.DecodeError):
                self._handle(self._decoder.decode(payload))
            count += 1
        return count

    def close(self) -> None:
        """Close both ends; what has not been sent is dropped. Idempotent."""
        self._stop_reading()
        self._from_engine.close(linger=0)
        self._to_engine.close(linger=0)
        self._context.term()

    def _read(self) -> None:
        if not self._reading:
            return
        handled = 0
        try:
            for payload in islice(self._arrived(), _MESSAGES_AT_ONCE):
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

    def _arrived(self) -> Iterator[bytes]:
        """All that has come. ZMQ's descriptor tells of changes only, so it must be read until nothing is left."""
        with contextlib.suppress(zmq.Again):
            while not self._from_engine.closed:
                yield self._from_engine.recv(zmq.NOBLOCK)
