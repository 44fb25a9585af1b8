"""ZMQ addresses of an engine process and of its peers: Unix sockets in a directory that only this user may enter.

Imports next to nothing: `kvarn serve` starts an engine process before anything else.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

_MAX_SOCKET_PATH = 100
"""Bytes that every Unix takes as the address of a socket, with a little to spare."""


def engine_address(directory: Path | str) -> str:
    return f"ipc://{Path(directory) / 'engine'}"


def supervisor_address(directory: Path | str) -> str:
    return f"ipc://{Path(directory) / 'supervisor'}"


def client_address(directory: Path | str, gateway: int) -> str:
    return f"ipc://{Path(directory) / f'client-{gateway}'}"


def make_socket_directory() -> Path:
    """A new directory; under /tmp where the usual place is too deep for a socket's path."""
    directory = Path(tempfile.mkdtemp(prefix="kvarn-"))
    if len(client_address(directory, 10**6).encode()) > _MAX_SOCKET_PATH:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="kvarn-", dir="/tmp"))
    return directory


def remove_socket_directory(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for socket in directory.iterdir():
            socket.unlink(missing_ok=True)
        directory.rmdir()
