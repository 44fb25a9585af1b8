"""The exit of a child process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading


def exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Resolves to a process's exit status as soon as it ends (negative: the signal that killed it)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def set_status(status: int) -> None:
        if not future.done():
            future.set_result(status)

    def wait() -> None:
        status = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(set_status, status)

    threading.Thread(target=wait, name=f"kvarn-wait-{process.pid}", daemon=True).start()
    return future


def describe_exit(status: int, process: str = "the engine process") -> str:
    if status >= 0:
        return f"{process} ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"{process} was ended by {name}{hint}"
