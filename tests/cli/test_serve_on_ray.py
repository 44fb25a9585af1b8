"""`kvarn serve` with engines on a Ray cluster of several nodes: the README's way from one machine to many."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ray_cluster import RayCluster

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
  ray: {{address: "{address}", namespace: test, orphan_timeout_s: 60}}
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
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=BODY, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def status(kvarn, served) -> dict:
    finished = kvarn("status", "small", "--json", "--url", served.url)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def placed(served) -> int:
    return sum("Ray has placed an engine" in line for line in served.log)


def test_engines_on_a_cluster_outlive_their_gateway_and_their_node(kvarn, serve, cluster, tmp_path: Path):
    machines, nodes = cluster
    config = tmp_path / "kvarn.yaml"
    config.write_text(CONFIG.format(address=machines.address), encoding="utf-8")
    first = serve("--config", str(config), KVARN_DATA_DIR=str(tmp_path))
    text = ask(first)
    assert kvarn("scale", "small", "2", "--wait", "120", "--url", first.url).returncode == 0
    assert placed(first) == 2
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()

    second = serve("--config", str(config), KVARN_DATA_DIR=str(tmp_path))
    assert ask(second) == text
    assert kvarn("scale", "small", "2", "--wait", "120", "--url", second.url).returncode == 0
    assert placed(second) == 0, "it took over what ran"

    assert kvarn("scale", "small", "3", "--wait", "120", "--url", second.url).returncode == 0
    machines.add_node(cpus=2)
    machines.kill_node(nodes[0])
    for _ in range(20):
        assert ask(second) == text
    assert kvarn("scale", "small", "3", "--wait", "180", "--url", second.url).returncode == 0
    assert status(kvarn, second)["ready"] == 3
    assert kvarn("scale", "small", "0", "--wait", "60", "--url", second.url).returncode == 0
