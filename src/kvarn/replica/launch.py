"""An engine process and the two sockets to it, seen from the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from kvarn.replica.spec import DEFAULT_FACTORY, Handover, ReplicaSpec, write_handover
from kvarn.wire.messages import FromEngine, ToEngine

_LONGEST_SOCKET_PATH = 100
"""Bytes that every Unix takes as the path of a socket, with a little to spare."""
_LAST_WORDS_S = 0.05
"""How long to listen for messages still under way after the process has ended."""


class EngineProcess:
    """One run of an engine, from `spawn` to its end. Neither needs an event loop before `connect`.

    The sockets lie in a directory that only this user may enter, new for each run, so that nothing of an earlier run
    is ever read. The process dies with the thread that calls `spawn` (Linux ties it to that thread), so spawn from one
    that lives as long as the replica shall.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, spawned_at: float) -> None:
        self._process = process
        self._directory = directory
        self._spawned_at = spawned_at
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._to_engine: zmq.Socket[bytes] | None = None
        self._from_engine: zmq.asyncio.Socket | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    @classmethod
    def spawn(cls, factory: str = DEFAULT_FACTORY) -> EngineProcess:
        """Start the process; it imports the factory's module while it waits for `hand_over`."""
        directory = _private_directory()
        spawned_at = time.monotonic()
        command = [sys.executable, "-P", "-m", "kvarn.replica.process", factory.partition(":")[0]]
        # A session of its own: Ctrl-C in the terminal reaches the gateway, which then lets requests finish.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return cls(process, directory, spawned_at)

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
        self._from_engine = zmq.asyncio.Socket(self._context, zmq.PULL)
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

    async def messages(self) -> AsyncIterator[FromEngine]:
        """What the engine sends, for ever.

        Raises:
            msgspec.DecodeError: The engine speaks another version of the messages.
        """
        assert self._from_engine is not None
        while True:
            yield self._decoder.decode(await self._from_engine.recv())

    async def last_words(self) -> list[FromEngine]:
        """What was still under way when the process ended; what cannot be read of it is left out."""
        assert self._from_engine is not None
        found: list[FromEngine] = []
        while await self._from_engine.poll(round(_LAST_WORDS_S * 1000)):
            with contextlib.suppress(msgspec.DecodeError):
                found.append(self._decoder.decode(await self._from_engine.recv()))
        return found

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
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for socket in (self._from_engine, self._to_engine):
            if socket is not None:
                socket.close(linger=0)
        if self._context is not None:
            self._context.term()
        for name in ("in", "out"):
            (self._directory / name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._directory.rmdir()

    @property
    def _inbox(self) -> str:
        return f"ipc://{self._directory / 'in'}"

    @property
    def _outbox(self) -> str:
        return f"ipc://{self._directory / 'out'}"


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


def _private_directory() -> Path:
    """A new directory of this user alone; under /tmp where the usual place is too deep for a socket's path."""
    directory = Path(tempfile.mkdtemp(prefix="kvarn-"))
    if len(str(directory / "out").encode()) > _LONGEST_SOCKET_PATH:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="kvarn-", dir="/tmp"))
    return directory
