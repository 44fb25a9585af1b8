"""Starts an engine process. Imports next to nothing, so that a command can do it before anything else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FACTORY = "kvarn.replica.build:build_service"
"""Builds a service from a spec: the real engine."""

_INBOX, _OUTBOX = "in", "out"
"""Names of the sockets that the engine reads and writes to."""

_LONGEST_SOCKET_PATH = 100
"""Bytes that every Unix takes as the address of a socket, with a little to spare."""


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    """A process that imports what it will need while it waits to be told what to become."""

    process: subprocess.Popen[bytes]
    directory: Path
    """Of its sockets: only this user may enter it."""
    spawned_at: float
    """`time.monotonic()` just before it was started."""

    def abandon(self) -> None:
        """Kill the process and remove its sockets. Idempotent."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        remove_sockets(self.directory)


def spawn_engine(factory: str = DEFAULT_FACTORY) -> SpawnedEngine:
    """Start an engine process whose service `factory` (`module:function`) will build.

    The process dies with the thread that calls this (Linux ties it to the thread, not to the process), so call it from
    one that lives as long as the engine shall.

    Raises:
        OSError: No process or no directory can be made.
    """
    directory = _private_directory()
    spawned_at = time.monotonic()
    command = [sys.executable, "-P", "-m", "kvarn.replica.process", factory.partition(":")[0]]
    # A session of its own: Ctrl-C in the terminal reaches the gateway only, which then lets requests finish.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=_environment())
    return SpawnedEngine(process, directory, spawned_at)


def _environment() -> dict[str, str]:
    """This process's environment, with kernel threads that spin for a moment, then sleep, while they wait.

    By default OpenMP's threads spin long: where another process takes a core, they burn the time slice that the thread
    they wait for needs. Sleeping at once costs a wake-up at each operation. A short spin keeps the speed of the one on
    an idle machine and most of the patience of the other on a busy one (figures in docs/benchmarks.md). Only the
    environment reaches the OpenMP runtime; whoever sets a policy keeps it.
    """
    chosen = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    return dict(os.environ) if chosen else {"GOMP_SPINCOUNT": "20000", **os.environ}


def inbox_address(directory: Path) -> str:
    """ZMQ address that the engine reads."""
    return f"ipc://{directory / _INBOX}"


def outbox_address(directory: Path, gateway: int = 0) -> str:
    """ZMQ address at which a gateway process, by its number, hears the engine."""
    return f"ipc://{directory / _OUTBOX}-{gateway}"


def remove_sockets(directory: Path) -> None:
    """Remove a directory of sockets. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        for socket in directory.iterdir():
            socket.unlink(missing_ok=True)
        directory.rmdir()


def _private_directory() -> Path:
    """A new directory of this user alone; under /tmp where the usual place is too deep for a socket's path."""
    directory = Path(tempfile.mkdtemp(prefix="kvarn-"))
    if len(outbox_address(directory).encode()) > _LONGEST_SOCKET_PATH:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="kvarn-", dir="/tmp"))
    return directory
