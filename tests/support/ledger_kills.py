"""Clients of a gateway that is killed again and again, and what they were told."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvarn.config.schema import KvarnConfig

MAX_PROMPT_CHARS = 60


@dataclass
class Told:
    """What a client knows of one request."""

    request_id: str
    kind: str
    """`stream`, `whole` or `vectors`."""
    received: int = 0
    """Tokens of text that arrived."""
    usage: dict[str, Any] | None = None
    """Of an answer that came to its end."""
    refused: bool = False
    """Answered with an error before any work."""


class Gateway:
    """The process that is killed and started again; see `gateway_process.py`."""

    def __init__(self, config: KvarnConfig, checkpoint: Path, home: Path, *log: Path) -> None:
        (home / "config.json").write_text(config.model_dump_json())
        program = Path(__file__).with_name("gateway_process.py")
        self._log = (home / "gateway.log").open("ab")
        self._parent = subprocess.Popen(
            [sys.executable, str(program), str(home / "config.json"), str(checkpoint), *map(str, log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(program.parent)},
        )
        self._pid = 0
        self.port = 0

    def start(self) -> None:
        """Returns once it is ready."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write("start\n")
        self._parent.stdin.flush()
        line = self._parent.stdout.readline().split()
        assert len(line) == 2, f"the gateway did not start: {line}"
        self._pid, self.port = int(line[0]), int(line[1])

    def end(self, number: int = signal.SIGKILL) -> None:
        """Returns once it has ended."""
        port, self.port = self.port, 0
        assert port and self._parent.stdout is not None
        os.kill(self._pid, number)
        assert self._parent.stdout.readline() == "ended\n"

    def close(self) -> None:
        """No more gateways."""
        if self.port:
            self.end()
        self._parent.communicate()
        self._log.close()


@dataclass
class Clients:
    """Threads that send requests, one after the other, and go on when the gateway is back."""

    gateway: Gateway
    told: list[Told] = field(default_factory=list)
    chunks: int = 0
    """Parts of streams that have arrived, at all clients."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        """Send requests until the block ends; those under way are waited for."""
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "a request hangs"

    def wait(self, chunks: int, seconds: float) -> None:
        """Let so many more parts of streams arrive, or so much time pass."""
        enough, deadline = self.chunks + chunks, time.monotonic() + seconds
        while self.chunks < enough and time.monotonic() < deadline:
            time.sleep(0.001)

    def _work(self, number: int) -> None:
        draw = random.Random(number)
        count = 0
        while not self._stopping.is_set():
            port = self.gateway.port
            if not port:
                time.sleep(0.01)
                continue
            count += 1
            told = Told(f"req-{number}-{count}", draw.choice(["stream", "stream", "whole", "vectors"]))
            try:
                self._ask(port, told, "y" * draw.randrange(1, MAX_PROMPT_CHARS))
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # the gateway was killed
            with self._lock:
                self.told.append(told)

    def _ask(self, port: int, told: Told, text: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            path, body = _request(told.kind, text)
            headers = {"content-type": "application/json", "x-request-id": told.request_id}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                told.refused = True
            elif told.kind == "stream":
                self._read_stream(answer, told)
            else:
                told.usage = json.loads(answer.read())["usage"]
        finally:
            connection.close()

    def _read_stream(self, answer: http.client.HTTPResponse, told: Told) -> None:
        usage = None
        while line := answer.readline():
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                told.usage = usage
            elif data:
                self.chunks += 1
                chunk = json.loads(data)
                usage = chunk.get("usage") or usage
                told.received += sum(len(choice["delta"].get("content") or "") for choice in chunk.get("choices", ()))


def _request(kind: str, text: str) -> tuple[str, dict[str, Any]]:
    if kind == "vectors":
        return "/v1/embeddings", {"model": "vec", "input": text}
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    if kind == "stream":
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return "/v1/chat/completions", body
