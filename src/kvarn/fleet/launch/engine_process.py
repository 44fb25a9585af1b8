"""Start of an engine process. Imports next to nothing, so that a command can do it before anything else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kvarn.clock import SYSTEM_CLOCK
from kvarn.replica.addresses import make_socket_directory, remove_socket_directory


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process that does its imports while it waits for its `ReplicaSpec`."""

    popen: subprocess.Popen[bytes]
    sockets: Path
    spawned_at: float  # `Clock.now` just before it was started

    @classmethod
    def spawn(cls, imports: str = "kvarn.replica.server.build") -> EngineProcess:
        """Start a process that imports this module, of the factory of its service. It dies with the calling thread
        (Linux ties it to the thread, not to the process): call it from one that lives as long as the engine should."""
        sockets = make_socket_directory()
        spawned_at = SYSTEM_CLOCK.now()
        command = [sys.executable, "-P", "-m", "kvarn.replica.server", imports]
        # A session of its own: Ctrl-C in the terminal reaches the gateway only, which then lets requests finish.
        popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=_environment())
        return cls(popen, sockets, spawned_at)

    @property
    def runs(self) -> bool:
        """Whether the process is alive and not stopped by a signal (SIGSTOP, a debugger)."""
        try:
            state = Path(f"/proc/{self.popen.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:  # not Linux, or already gone
            state = ""
        return self.popen.poll() is None and state not in ("T", "t")

    def start(self, spec: bytes) -> None:
        """Send the `ReplicaSpec` as one line of JSON. A process that is gone is noticed by its exit, not here."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(spec + b"\n")
            self.popen.stdin.flush()

    def close(self) -> None:
        """Kill the process if it still runs and remove its sockets. Idempotent."""
        self.popen.kill()
        self.popen.wait()
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.close()
        remove_socket_directory(self.sockets)


MALLOC_SETTINGS = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
"""Activations of a step are memory of the C library: in huge pages, and kept from step to step instead of being given
back to the system, which supplies each page anew. A prompt of 1,024 tokens is computed 3 % faster
(docs/internals/kernels.md)."""


def _environment() -> dict[str, str]:
    """This process's environment, with what the C library and OpenMP read there when a process starts.

    By default OpenMP's threads spin long: where another process takes a core, they burn the time slice that the thread
    they wait for needs. Sleeping at once costs a wake-up at each operation. A short spin keeps the speed of the one on
    an idle machine and most of the patience of the other on a busy one (figures in docs/internals/benchmarks.md). A
    policy that the environment sets is kept.
    """
    environment = {"GLIBC_TUNABLES": MALLOC_SETTINGS, **os.environ}
    chosen = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    return environment if chosen else {"GOMP_SPINCOUNT": "20000", **environment}
