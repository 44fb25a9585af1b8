from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foreign_server import ForeignServer, foreign_gateway, unused_port


@pytest.fixture(scope="session")
def foreign_servers() -> Iterator[list[ForeignServer]]:
    servers = [ForeignServer(unused_port()) for _ in range(2)]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def shared_foreign_gateway(
    foreign_servers: list[ForeignServer], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """`far` has one external replica, `far-vec` embeds there, `tiny` is Kvarn's own."""
    external = {"base_url": foreign_servers[0].url, "model": "foreign-model", "probe_interval_s": 0.05}
    breaker = {"min_requests": 1_000_000}
    config = {
        "models": [
            {"name": "far", "external": {**external, "api": "vllm"}, "aliases": ["afar"], "breaker": breaker},
            {"name": "far-vec", "kind": "embed", "external": external, "breaker": breaker},
            {"name": "tiny", "path": "tiny"},
        ]
    }
    with foreign_gateway(config, checkpoint, tmp_path_factory.mktemp("far")) as gateway:
        yield gateway


@pytest.fixture
def foreign(foreign_servers: list[ForeignServer]) -> ForeignServer:
    """The first of the foreign servers, as new."""
    for server in foreign_servers:
        server.reset()
    return foreign_servers[0]


@pytest.fixture
def far(shared_foreign_gateway: Any, foreign: ForeignServer) -> Iterator[Any]:
    """A client of the gateway over the first foreign server."""
    with shared_foreign_gateway.client() as client:
        yield client
