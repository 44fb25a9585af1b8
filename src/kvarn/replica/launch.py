"""An engine process and the two sockets to it, seen from the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import zmq

from kvarn.replica.spawn import INBOX, OUTBOX, SpawnedEngine
from kvarn.replica.spec import Handover, ReplicaSpec, write_handover
from kvarn.wire.messages import FromEngine, ToEngine

_MESSAGES_AT_ONCE = 16
"""Messages handled in one turn of the event loop: when it was held up, hundreds of steps may have come."""
_LAST_WORDS_S = 0.05
"""How long to listen for messages still under way after the process has ended."""


class EngineProcess:
    """One run of an engine, from its spawn to its end. Needs no event loop before `connect`."""

    def __init__(self, spawned: SpawnedEngine) -> None:
        self._spawned = spawned
        self._process = spawned.process
        self._directory = spawned.directory
        self._spawned_at = spawned.spawned_at
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._to_engine: zmq.Socket[bytes] | None = None
        self._from_engine: zmq.Socket[bytes] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def hand_over(self, spec: ReplicaSpec) -> None:
        """Tell the process what to become. A process that is gone is noticed by `ended`, not here."""
        handover = Handover(spec=spec, inbox=self._inbox, outbox=self._outbox, spawned_at=self._spawned_at)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            write_handover(self._process.stdin, handover)

    def connect(self) -> None:
        """Open this end of the sockets, in the running event loop."""
        self._context = zmq.Context()
        self._from_engine = self._context.socket(zmq.PULL)
        self._from_engine.set_hwm(0)
        self._from_engine.bind(self._outbox)
        self._to_engine = self._context.socket(zmq.PUSH)
        self._to_engine.set_hwm(0)
        self._to_engine.setsockopt(zmq.RECONNECT_IVL, 10)
        self._to_engine.connect(self._inbox)

    def send(self, message: ToEngine) -> None:
        """Queue a message for the engine; never waits."""
        assert self._to_engine is not None
        self._to_engine.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def listen(self, handle: Callable[[FromEngine], None]) -> None:
        """Hand over what the engine sends, for ever, right where the event loop learns of it.

        A message comes with each step. Awaiting them one by one, through ZMQ's own futures, took several turns of the
        loop for each: about half of what a step of few streams cost the gateway.

        Raises:
            msgspec.DecodeError: The engine speaks another version of the messages.
            Exception: What `handle` raises.
        """
        assert self._from_engine is not None
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

    async def last_words(self) -> list[FromEngine]:
        """What was still under way when the process ended; what cannot be read of it is left out."""
        found: list[FromEngine] = []
        payloads = list(self._arrived())
        while payloads or (payloads := await self._arrived_later()):
            for payload in payloads:
                with contextlib.suppress(msgspec.DecodeError):
                    found.append(self._decoder.decode(payload))
            payloads = []
        return found

    def _arrived(self) -> Iterator[bytes]:
        """All that has come. ZMQ's descriptor tells of changes only, so it must be read until nothing is left."""
        assert self._from_engine is not None
        with contextlib.suppress(zmq.Again):
            while True:
                yield self._from_engine.recv(zmq.NOBLOCK)

    async def _arrived_later(self) -> list[bytes]:
        await asyncio.sleep(_LAST_WORDS_S)
        return list(self._arrived())

    def ended(self) -> asyncio.Future[int]:
        """Resolves to the exit status as soon as the process ends (negative: the signal that killed it)."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def set_status(status: int) -> None:
            if not future.done():
                future.set_result(status)

        def wait() -> None:
            status = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(set_status, status)

        threading.Thread(target=wait, name=f"kvarn-wait-{self.pid}", daemon=True).start()
        return future

    def kill(self) -> None:
        """End the process now, whatever it is doing."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process if it still runs, close the sockets and remove their directory. Idempotent."""
        self._process.kill()
        for socket in (self._from_engine, self._to_engine):
            if socket is not None:
                socket.close(linger=0)
        if self._context is not None:
            self._context.term()
        self._spawned.abandon()

    @property
    def _inbox(self) -> str:
        return f"ipc://{self._directory / INBOX}"

    @property
    def _outbox(self) -> str:
        return f"ipc://{self._directory / OUTBOX}"


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"the engine process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"the engine process was ended by {name}{hint}"
