"""Servers that take over a socket from one another, while clients ask."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from deployed_server import PAUSE_S
from profiles import effort

READY = re.compile(r"Kvarn serves \S+ at ")
START = 'exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
"""The socket is the shell's standard input; the server gets it as descriptor 3."""
Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as made:
        yield made


@pytest.fixture
def launch(listener: socket.socket, tmp_path: Path) -> Iterator[Launch]:
    """Start a server on the socket."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        kvarn = [sys.executable, "-c", "from kvarn.cli.main import main; main()", "serve"]
        process = subprocess.Popen(
            ["sh", "-c", START, "sh", *kvarn, "--kv-cache-gib", "0.05", "--max-context-length", "512", *arguments],
            stdin=listener,
            stdout=subprocess.PIPE,
            stderr=(tmp_path / f"log{len(started)}").open("w"),
            text=True,
            env={**os.environ, "KVARN_DATA_DIR": str(tmp_path / "data")},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def await_ready(process: subprocess.Popen[str]) -> None:
    assert any(READY.search(line) for line in process.stdout or ()), process.wait()


@pytest.mark.chaos
def test_no_request_fails_while_servers_take_over_from_one_another(listener: socket.socket, launch: Launch) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    serving, over = launch(), threading.Event()
    await_ready(serving)
    answers: list[int] = []
    errors: list[Exception] = []

    def ask(number: int) -> None:
        try:
            while not over.is_set():
                # A client each time: connections are made all along. None tries anything again.
                with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
                    for _ in range(1 + number % 2):
                        stream = client.completions.create(
                            model="kvarn-demo", prompt="x", max_tokens=40, stream=True, extra_body={"ignore_eos": True}
                        )
                        chunks = list(stream)
                        assert chunks[-1].choices[0].finish_reason == "length"
                    answers.append(number)
                over.wait(PAUSE_S)
        except Exception as error:  # told by the test
            errors.append(error)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(effort(3, 8))]
    for client in clients:
        client.start()
    for _ in range(effort(1, 20)):
        following = launch()
        await_ready(following)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
        serving = following
    over.set()
    for client in clients:
        client.join()
    assert errors == [] and len(answers) > 3


@pytest.mark.thorough
def test_several_sockets_or_processes_are_refused(listener: socket.socket, launch: Launch, tmp_path: Path) -> None:
    assert launch("--api-server-count", "2").wait(60) == 2
    assert "--api-server-count" in (tmp_path / "log0").read_text()
