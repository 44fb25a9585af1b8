"""The small OpenAI server of `openai_server.py` as a process, and a gateway whose models it runs."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fake_replica import EMBED_CARD, GENERATE_CARD, FakeReplica
from gateway_fixtures import GatewayServer, running, wait_for
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig

SCRIPT = Path(__file__).with_name("openai_server.py")


@dataclass
class ForeignServer:
    """A server process; `control` says what goes wrong in it."""

    port: int
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process = subprocess.Popen([sys.executable, str(SCRIPT), str(self.port)], stdin=subprocess.PIPE)
        wait_for(self._answers, "the foreign server to listen", 30)

    def stop(self) -> None:
        """End it as a power failure would."""
        self.process.kill()
        self.process.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def control(self, **settings: Any) -> None:
        httpx.post(f"http://127.0.0.1:{self.port}/control", json=settings, timeout=10).raise_for_status()

    def reset(self) -> None:
        self.control(reset=True)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies that it was sent, with their paths."""
        asked: list[dict[str, Any]] = self._told()["requests"]
        return asked

    @property
    def broken_off(self) -> int:
        """Connections that were closed in mid-answer."""
        return int(self._told()["broken_off"])

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self.port}/control", timeout=10).json()
        return told

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the foreign server ended"
        try:
            self._told()
        except httpx.HTTPError:
            return False
        return True


def unused_port() -> int:
    """A port that nobody listens on, below those that the system gives to whoever asks for any."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def foreign_gateway(
    config: dict[str, Any], checkpoint: Path, tmp_path: Path, *, wait_ready: bool = True
) -> Iterator[GatewayServer]:
    """A gateway over a configuration: models with a path are fake replicas, external ones are really asked."""
    loaded = KvarnConfig.model_validate(
        {"data_dir": str(tmp_path / "data"), **config, "gateway": {"port": 0, "drain_timeout_s": 1}}
    )
    served, fakes = {}, {}
    for model in loaded.models:
        clients = []
        if model.external is None:
            fakes[model.name] = FakeReplica(EMBED_CARD if model.kind == "embed" else GENERATE_CARD)
            clients = [fakes[model.name]]
        served[model.name] = ServedModel(model.name, model, clients, checkpoint)
    chat = next(iter(fakes.values()), FakeReplica(GENERATE_CARD))
    server = GatewayServer(loaded, chat, FakeReplica(EMBED_CARD), served)
    with running(server, wait_ready=wait_ready):
        yield server
