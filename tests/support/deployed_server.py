"""A server whose deployments change while clients ask it."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import httpx

SMALL = ("--max-model-len", "256", "--kv-cache-memory-bytes", "32M")
WAIT = ("--wait", "120")
PAUSE_S = 0.1
"""Pause of a client between two requests: the processor is for what changes meanwhile."""


class Load:
    """Requests one after another, from two threads, until it is left; each must be answered."""

    def __init__(self, url: str, model: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": "What is TTFT?"}],
            "max_tokens": 24,
            "temperature": 0,
        }
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]
        self.answers: list[str] = []
        self.failures: list[str] = []

    def _ask(self) -> None:
        with httpx.Client(timeout=120) as client:
            while not self._stop.is_set():
                answer = client.post(self._url, json=self._body)
                if answer.status_code == 200:
                    self.answers.append(answer.json()["choices"][0]["message"]["content"])
                else:
                    self.failures.append(answer.text)
                self._stop.wait(PAUSE_S)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def done(finished) -> str:
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def status(kvarn, served, model: str) -> dict:
    (line,) = done(kvarn("status", model, "--json", "--url", served.url)).splitlines()
    return json.loads(line)


def wait_for(condition) -> None:
    """Wait for a condition. A connection that a killed process had not accepted yet is reset: that is tried again."""
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(httpx.TransportError):
            if condition():
                return
        assert time.monotonic() < deadline, "not within 120 s"
        time.sleep(0.05)
