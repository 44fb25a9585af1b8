"""A gateway process's end of the two message queues that join it to an engine; see `link` for the engine's end."""

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


class EngineSockets:
    """Sends to an engine and hears from it, in the running event loop.

    Args:
        inbox: ZMQ address that the engine binds and reads.
        outbox: ZMQ address that this process binds and the engine writes to.
    """

    def __init__(self, inbox: str, outbox: str) -> None:
        self._context = zmq.Context()
        self._from_engine = self._context.socket(zmq.PULL)
        self._from_engine.set_hwm(0)
        self._from_engine.bind(outbox)
        self._to_engine = self._context.socket(zmq.PUSH)
        self._to_engine.set_hwm(0)
        self._to_engine.setsockopt(zmq.RECONNECT_IVL, 10)
        self._to_engine.connect(inbox)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    def send(self, message: ToEngine) -> None:
        """Queue a message for the engine; never waits."""
        self._to_engine.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def listen(self, handle: Callable[[FromEngine], None]) -> None:
        """Hand over what the engine sends, for ever, right where the event loop learns of it.

        A message comes with each step. Awaiting them one by one, through ZMQ's own futures, took several turns of the
        loop for each: about half of what a step of few streams cost the gateway.

        Raises:
            msgspec.DecodeError: The engine speaks another version of the messages.
            Exception: What `handle` raises.
        """
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            if broken.done():
                return
            handled = 0
            try:
                for payload in islice(self._arrived(), _MESSAGES_AT_ONCE):
                    handle(self._decoder.decode(payload))
                    handled += 1
            except Exception as error:
                broken.set_exception(error)
            if handled == _MESSAGES_AT_ONCE:
                loop.call_soon(read)

        descriptor = self._from_engine.fileno()
        loop.add_reader(descriptor, read)
        try:
            read()  # what came earlier is not signalled again
            await broken
        finally:
            broken.cancel()  # a read may be due
            loop.remove_reader(descriptor)

    def readable(self) -> list[FromEngine]:
        """All that has come and has not been handed over; what cannot be read of it is left out."""
        found: list[FromEngine] = []
        for payload in self._arrived():
            with contextlib.suppress(msgspec.DecodeError):
                found.append(self._decoder.decode(payload))
        return found

    def close(self) -> None:
        """Close both; what has not been sent is dropped."""
        self._from_engine.close(linger=0)
        self._to_engine.close(linger=0)
        self._context.term()

    def _arrived(self) -> Iterator[bytes]:
        """All that has come. ZMQ's descriptor tells of changes only, so it must be read until nothing is left."""
        with contextlib.suppress(zmq.Again):
            while True:
                yield self._from_engine.recv(zmq.NOBLOCK)
