"""An engine process and the two sockets to it, seen from the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from pathlib import Path

from kvarn.replica.sockets import EngineSockets
from kvarn.replica.spawn import SpawnedEngine, inbox_address, outbox_address
from kvarn.replica.spec import Handover, ReplicaSpec, write_handover
from kvarn.wire.messages import FromEngine, ToEngine

_LAST_WORDS_S = 0.05
"""How long to listen for messages still under way after the process has ended."""


class EngineProcess:
    """One run of an engine, from its spawn to its end. Needs no event loop before `connect`."""

    def __init__(self, spawned: SpawnedEngine) -> None:
        self._spawned = spawned
        self._process = spawned.process
        self._directory = spawned.directory
        self._spawned_at = spawned.spawned_at
        self._sockets: EngineSockets | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def hand_over(self, spec: ReplicaSpec) -> None:
        """Tell the process what to become. A process that is gone is noticed by `ended`, not here."""
        inbox, outbox = inbox_address(self._directory), outbox_address(self._directory)
        handover = Handover(spec=spec, inbox=inbox, outbox=outbox, spawned_at=self._spawned_at)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            write_handover(self._process.stdin, handover)

    @property
    def directory(self) -> Path:
        """Of its sockets."""
        return self._directory

    def connect(self) -> EngineSockets:
        """Open this end of the sockets, in the running event loop."""
        self._sockets = EngineSockets(inbox_address(self._directory), outbox_address(self._directory))
        return self._sockets

    def send(self, message: ToEngine) -> None:
        """Queue a message for the engine; never waits."""
        assert self._sockets is not None
        self._sockets.send(message)

    async def last_words(self) -> list[FromEngine]:
        """What was still under way when the process ended; what cannot be read of it is left out."""
        assert self._sockets is not None
        found = self._sockets.readable()
        while True:
            await asyncio.sleep(_LAST_WORDS_S)
            later = self._sockets.readable()
            if not later:
                return found
            found += later

    def ended(self) -> asyncio.Future[int]:
        """Resolves to the exit status as soon as the process ends (negative: the signal that killed it)."""
        return exit_of(self._process)

    def kill(self) -> None:
        """End the process now, whatever it is doing."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process if it still runs, close the sockets and remove their directory. Idempotent."""
        self._process.kill()
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()
        self._spawned.abandon()


def exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Resolves to a process's exit status as soon as it ends (negative: the signal that killed it)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def set_status(status: int) -> None:
        if not future.done():
            future.set_result(status)

    def wait() -> None:
        status = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_status, status)

    threading.Thread(target=wait, name=f"kvarn-wait-{process.pid}", daemon=True).start()
    return future


def describe_exit(status: int, what: str = "the engine process") -> str:
    """An exit status in words."""
    if status >= 0:
        return f"{what} ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"{what} was ended by {name}{hint}"
