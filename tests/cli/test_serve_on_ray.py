"""`kvarn serve` with engines on a Ray cluster of several nodes: the README's way from one machine to many."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from deployed_server import wait_for
from kvarn.replica.endpoint import free_address
from ray_cluster import RayCluster

WAIT_S = 120.0
CONFIG = """\
models:
  - name: small
    path: kvarn-demo
    replicas: 2
    threads: 1
    max_context_length: 256
    kv_cache_gib: 0.03
    hardware: {{cpus: 1}}
fleet:
  launcher: ray
  lease_s: 2
  ray: {{address: "{address}", namespace: {namespace}, orphan_timeout_s: 60}}
"""
BODY = {
    "model": "small",
    "messages": [{"role": "user", "content": "What is TTFT?"}],
    "max_tokens": 24,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RayCluster, list[str]]]:
    """A head without room for engines, and two nodes with room for two each."""
    started = RayCluster()
    yield started, [started.add_node(cpus=2) for _ in range(2)]
    started.stop()


def ask(served) -> str:
    return ask_at(served.url)


def ask_at(url: str) -> str:
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.thorough
def test_the_second_of_two_gateways_takes_the_engines_over_when_the_first_is_killed(
    kvarn, serve, cluster, tmp_path: Path
):
    machines, _ = cluster
    machines.add_node(cpus=2)
    config = tmp_path / "kvarn.yaml"
    config.write_text(CONFIG.format(address=machines.address, namespace="gateways"), encoding="utf-8")
    first = serve("--config", str(config), KVARN_DATA_DIR=str(tmp_path))
    assert kvarn("scale", "small", "2", "--wait", "120", "--url", first.url).returncode == 0
    text = ask(first)

    address = free_address("127.0.0.1")
    with ThreadPoolExecutor() as pool:
        # It says that it is ready when it has engines: not before it takes them over.
        arguments = ("--config", str(config), "--port", address.rpartition(":")[2])
        starting = pool.submit(serve, *arguments, KVARN_DATA_DIR=str(tmp_path))
        url = address.replace("tcp", "http")
        wait_for(lambda: httpx.get(f"{url}/ready", timeout=WAIT_S).status_code == 503)
        assert not starting.done()
        early = pool.submit(ask_at, url)
        assert ask(first) == text
        assert not early.done()
        first.process.kill()
        second = starting.result(WAIT_S)
        assert early.result(WAIT_S) == text
    for _ in range(20):
        assert ask(second) == text
    assert kvarn("scale", "small", "2", "--wait", "120", "--url", second.url).returncode == 0
    assert (placed(first), placed(second)) == (2, 0), "the engines are the same"
    assert kvarn("scale", "small", "0", "--wait", "60", "--url", second.url).returncode == 0


def placed(served) -> int:
    return sum("Ray has placed an engine" in line for line in served.log)
