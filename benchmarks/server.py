"""Servers under measurement: start one, wait for its first answer, watch its memory, stop all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STOP_TIMEOUT_S = 20.0
MEMORY_INTERVAL_S = 5.0
"""Reading PSS walks all pages and costs the server time."""
PROBE_INTERVAL_S = 0.05
ERROR_LINE = re.compile(r"(\b\w*(Error|Exception)\b: .+|\berror: .+|^ERROR: .+|\bfailed to load .+)")
MAX_REASON = 300


class ServerError(Exception):
    """A server did not start, or has ended; the message says why as far as its log tells."""


@dataclass
class Started:
    """A server that answers."""

    url: str
    model: str
    first_answer_s: float
    """From the start of the process to the end of a first answer."""
    memory: MemoryWatch
    process: subprocess.Popen[bytes]
    log: Path

    def must_run(self, within_s: float = 0.0) -> None:
        """Raise ServerError where the server has ended, or does so within some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        if self.process.returncode is not None:
            raise ServerError(f"it ended ({exit_reason(self.process.returncode)}): {reason_in(self.log)}")


@contextmanager
def running(
    command: list[str],
    port: int,
    log: Path,
    *,
    model: str = "m",
    probe: Callable[[str, str], object] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    limit_s: float = 600.0,
) -> Iterator[Started]:
    """A server for as long as the context lasts; its output goes to `log`.

    `probe` (URL, model) returns once the server answers and raises OSError before; default: a one-token completion.

    Raises:
        ServerError: It ended or did not answer within `limit_s`.
    """
    signal.signal(signal.SIGTERM, _exit)  # the context must end, and with it the server
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | dict(environment or {}),
                cwd=folder,
            )
        except OSError as error:
            raise ServerError(f"it cannot be started: {error}") from None
        memory = MemoryWatch(process.pid)
        started = Started(url, model, 0.0, memory, process, log)
        try:
            _wait(started, probe or complete, limit_s)
            started.first_answer_s = time.perf_counter() - began
            yield started
        finally:
            memory.stop()
            stop(process)


def _wait(started: Started, probe: Callable[[str, str], object], limit_s: float) -> None:
    deadline = time.perf_counter() + limit_s
    while time.perf_counter() < deadline:
        started.must_run()
        try:
            probe(started.url, started.model)
            return
        except OSError:
            time.sleep(PROBE_INTERVAL_S)
    raise ServerError(f"no answer within {limit_s:g} s; its log ends with: {last_line(started.log)}")


def complete(url: str, model: str) -> None:
    """Ask for one token. Raises OSError where the server is not ready."""
    body = json.dumps({"model": model, "prompt": [300, 301, 302], "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()


@contextmanager
def serving(
    model: str, path: str, log: Path, settings: dict[str, Any] | None = None, sections: dict[str, Any] | None = None
) -> Iterator[Started]:
    """`kvarn serve` on a free port with one model. `settings` are further fields of the model's configuration,
    `sections` further sections of the whole. Raises ServerError."""
    port = free_port()
    with running(
        kvarn_serve(log.with_suffix(".yaml"), port, model, path, settings, sections), port, log, model=model
    ) as s:
        yield s


def kvarn_serve(
    config: Path,
    port: int,
    model: str,
    path: str,
    settings: dict[str, Any] | None = None,
    sections: dict[str, Any] | None = None,
) -> list[str]:
    """Write a configuration; return the command that serves it."""
    described = {"models": [{"name": model, "path": path, **(settings or {})}], "gateway": {"port": port}}
    config.write_text(json.dumps(described | (sections or {})), encoding="utf-8")  # JSON is YAML
    return [str(Path(sys.executable).with_name("kvarn")), "serve", "--config", str(config)]


class MemoryWatch:
    """Samples the memory of a process and all its descendants: PSS counts a shared page once."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling."""
        self._stopped.set()
        self._thread.join()

    def sample(self) -> int:
        """Measure now; returns the most that was seen so far."""
        self.peak_bytes = max(self.peak_bytes, sum(pss_bytes(pid) for pid in process_tree(self._pid)))
        return self.peak_bytes

    def _watch(self) -> None:
        while not self._stopped.wait(MEMORY_INTERVAL_S):
            self.sample()


def process_tree(root: int) -> list[int]:
    """`root` and its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def processor_s(pid: int) -> float:
    """Seconds of a processor that a process has had; 0: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a server to end, then kill what is left of its process group."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def exit_reason(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}: it uses instructions this processor does not have" if name == "SIGILL" else name


def reason_in(log: Path) -> str:
    """The line of a log that explains the end of a program: the first named error, else the last line."""
    named = [found[1] for line in _lines(log) if (found := ERROR_LINE.search(line))]
    return named[0][:MAX_REASON] if named else last_line(log)


def last_line(log: Path) -> str:
    """The last line that a program wrote."""
    return (_lines(log) or ["its log is empty"])[-1][:MAX_REASON]


def _lines(log: Path) -> list[str]:
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8", errors="replace").replace("\\n", "\n")  # also where a line quotes lines
    return [line for each in text.splitlines() if (line := each.strip()) and not line.startswith("$ ")]


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
