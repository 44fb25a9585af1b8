"""Start `kvarn serve` for a benchmark: wait for it, watch its memory, stop it and only it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

STOP_TIMEOUT_S = 20.0
MEMORY_INTERVAL_S = 5.0


class ServerError(Exception):
    """The server did not start; the message holds the end of its log."""


@dataclass
class Started:
    """A running server and what its start cost."""

    url: str
    model: str
    pid: int
    ready_s: float
    """From the start of the process to `/ready`."""
    first_answer_s: float
    """From the start of the process to the end of a first one-token completion."""
    memory: MemoryWatch


@contextmanager
def serving(
    model: str, path: str, log: Path, settings: dict[str, Any] | None = None, sections: dict[str, Any] | None = None
) -> Iterator[Started]:
    """Run `kvarn serve` on a free port with one model, as long as the context lasts.

    `settings` are further fields of the model's configuration, `sections` further sections of the whole. The server's
    output goes to `log`.

    Raises:
        ServerError: It ended, or was not ready within ten minutes.
    """
    signal.signal(signal.SIGTERM, _leave)
    port = free_port()
    config = log.with_suffix(".yaml")
    described = {
        "models": [{"name": model, "path": path, **(settings or {})}],
        "gateway": {"port": port},
    } | (sections or {})
    config.write_text(json.dumps(described), encoding="utf-8")  # JSON is YAML
    kvarn = Path(sys.executable).with_name("kvarn")
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(kvarn), "serve", "--config", str(config)], stdout=output, stderr=output, start_new_session=True
        )
        memory = MemoryWatch(process.pid)
        try:
            _wait_ready(process, url, log)
            ready_s = time.perf_counter() - started
            _complete(url, model)
            yield Started(url, model, process.pid, ready_s, time.perf_counter() - started, memory)
        finally:
            memory.stop()
            stop(process)


class MemoryWatch:
    """Samples the memory of a process and all its descendants: PSS counts a shared page once."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling, with one last sample."""
        self._stopped.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stopped.wait(MEMORY_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, sum(pss_bytes(pid) for pid in process_tree(self._pid)))


def process_tree(root: int) -> list[int]:
    """`root` and its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            parent = int(stat[stat.rindex(")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


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
    """Ask the server's process group to end, then make it."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sent)
        try:
            process.wait(STOP_TIMEOUT_S)
            return
        except subprocess.TimeoutExpired:
            continue


def _leave(_number: int, _frame: FrameType | None) -> None:
    """A runner that is told to end must pass through its `finally` and take the server with it."""
    raise SystemExit(128 + signal.SIGTERM)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, limit_s: float = 600.0) -> None:
    deadline = time.perf_counter() + limit_s
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ServerError(f"kvarn serve is not ready (exit code {process.poll()}); the end of {log}:\n{tail}")


def _complete(url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": [300, 301, 302], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()
