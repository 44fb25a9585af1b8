from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from kvarn.cli.main import app

ENTRY = "from kvarn.cli.main import main; main()"
READY = re.compile(r"Kvarn serves (.+) at (https?://\S+) ")


@dataclass
class Served:
    """A running `kvarn serve`."""

    process: subprocess.Popen[str]
    url: str
    log: list[str] = field(default_factory=list)
    data: str = ""
    """Its data directory, where the test has chosen it."""

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def engines(self) -> list[int]:
        return self.children("kvarn.replica.server")

    def children(self, program: str = "") -> list[int]:
        """Ids of the child processes whose command line has `program` in it."""
        command = ["pgrep", "-P", str(self.process.pid), "-f", program]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return [int(pid) for pid in found.split()]


@dataclass
class Finished:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run_command(*arguments: str, stdin: str = "", **environment: str) -> Finished:
    """Run a command of `kvarn` in this process."""
    handlers = logging.root.handlers[:]
    done = CliRunner().invoke(app, arguments, input=stdin, env={"COLUMNS": "120", **environment})
    logging.root.handlers[:] = handlers  # a command that logs does so to a stream that ends with it
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Finished(done.exit_code, done.stdout, done.stderr)


def run_process(*arguments: str, **environment: str) -> Finished:
    """Run a command of `kvarn` in a process of its own, as the script does."""
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "120", **environment},
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def kvarn_inside() -> Callable[..., Finished]:
    """Run a command of `kvarn` in this process; for `serve` where it is refused before anything starts."""
    return run_command


@pytest.fixture
def kvarn() -> Callable[..., Finished]:
    """Run a command of `kvarn`; `serve` in a process of its own, since it changes the process it runs in."""

    def run(*arguments: str, **options: str) -> Finished:
        return (run_process if arguments[0] == "serve" else run_command)(*arguments, **options)

    return run


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start `kvarn serve` on a free port and wait until it says that it is ready."""
    yield from _servers()


@pytest.fixture(scope="module")
def serve_long() -> Iterator[Callable[..., Served]]:
    """The same for a server that several tests share."""
    yield from _servers()


def _servers() -> Iterator[Callable[..., Served]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> Served:
        process = subprocess.Popen(
            [sys.executable, "-c", ENTRY, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        served = Served(process, "", data=environment.get("KVARN_DATA_DIR", ""))
        threading.Thread(target=lambda: served.log.extend(process.stderr or ()), daemon=True).start()
        for line in process.stdout or ():
            found = READY.search(line)
            if found:
                served.url = found[2]
                return served
        raise AssertionError(f"kvarn serve ended with {process.wait()}: {''.join(served.log)}")

    yield start
    for process in started:
        process.kill()
        process.wait()
