"""Start an engine's server, wait for its first answer, watch its memory, stop it and all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.engines.base import Launch
from benchmarks.peers.workshop import last_line, reason_in
from benchmarks.server import MemoryWatch, process_tree, pss_bytes, stop

PROBE_INTERVAL_S = 0.1
PROBE = (300, 301, 302)
"""Prompt of the first question."""


class StartError(Exception):
    """A server ended, or gave no answer in time; the message says why as far as its log tells."""


class EndedError(Exception):
    """A server that had started has ended by itself."""


@dataclass
class Running:
    """A server that answers."""

    url: str
    model: str
    first_answer_s: float
    """From the start of the process to the end of a first one-token completion."""
    memory: MemoryWatch
    process: subprocess.Popen[bytes]
    log: Path

    def peak_pss_bytes(self) -> int:
        """Most memory of all its processes, this moment included."""
        return max(self.memory.peak_bytes, sum(pss_bytes(pid) for pid in process_tree(self.process.pid)))

    def must_run(self, within_s: float = 0.0) -> None:
        """Raises EndedError where the server has ended, or does so within some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        if self.process.returncode is not None:
            raise EndedError(f"it ended ({ending(self.process.returncode)}): {reason_in(self.log)}")


@contextmanager
def running(launch: Launch, port: int, log: Path, limit_s: float) -> Iterator[Running]:
    """A server for as long as the context lasts; its output goes to `log`.

    Raises:
        StartError: It ended or did not answer within `limit_s`.
    """
    with log.open("wb") as output:
        output.write(f"$ {' '.join(launch.command)}\n".encode())
        output.flush()
        started = time.perf_counter()
        try:
            process = subprocess.Popen(
                launch.command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | launch.environment,
                cwd=launch.folder,
            )
        except OSError as error:
            raise StartError(f"it cannot be started: {error}") from None
        memory = MemoryWatch(process.pid)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for_answer(process, url, launch.model, log, limit_s)
            yield Running(url, launch.model, time.perf_counter() - started, memory, process, log)
        finally:
            memory.stop()
            stop(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children that outlived it


def wait_for_answer(process: subprocess.Popen[bytes], url: str, model: str, log: Path, limit_s: float) -> None:
    """Ask for one token until it comes. Raises StartError."""
    deadline = time.perf_counter() + limit_s
    while (left := deadline - time.perf_counter()) > 0:
        if process.poll() is not None:
            raise StartError(f"it ended ({ending(process.returncode)}): {reason_in(log)}")
        if answers(url, model, left):
            return
        time.sleep(PROBE_INTERVAL_S)
    raise StartError(f"no answer within {limit_s:g} s; its log ends with: {last_line(log)}")


def answers(url: str, model: str, timeout_s: float) -> bool:
    """One token comes back."""
    body = json.dumps({"model": model, "prompt": PROBE, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return bool(json.load(answer).get("choices"))
    except (urllib.error.URLError, OSError, ValueError):
        return False


def ending(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}: it uses instructions this processor does not have" if name == "SIGILL" else name
