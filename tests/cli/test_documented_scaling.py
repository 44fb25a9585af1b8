"""The way of docs/start/machines.md from one process to many machines: each of its commands runs, in its order."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from ray_cluster import RayCluster

PAGE = (Path(__file__).parents[2] / "docs/start/machines.md").read_text(encoding="utf-8")
COMMANDS = [line.split() for line in re.findall(r"^    kvarn (.*)$", PAGE, re.MULTILINE)]
TWO_YAML, CLUSTER_YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SMALL = ("--max-model-len", "256", "--kv-cache-memory-bytes", "32M")


def answers(served, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "What is TTFT?"}], "max_tokens": 4}
    assert httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120).status_code == 200


def test_the_page_has_the_commands_that_are_run_here():
    assert [command[0] for command in COMMANDS] == [
        *("serve", "serve"),
        *("scale", "deploy", "rollback", "deploy", "status"),
        "serve",
    ]


@pytest.mark.thorough
def test_two_replicas(serve, tmp_path):
    served = serve(*COMMANDS[0][1:], *SMALL, KVARN_DATA_DIR=str(tmp_path))
    answers(served, "kvarn-demo")


@pytest.mark.thorough
def test_two_models_are_changed_while_they_run(kvarn, serve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text(TWO_YAML, encoding="utf-8")
    served = serve(*COMMANDS[1][1:], *SMALL, KVARN_DATA_DIR=str(tmp_path))
    for model in ("small", "other"):
        answers(served, model)
    for command in COMMANDS[2:7]:
        done = kvarn(*command, "--url", served.url)
        assert done.returncode == 0, done.stderr
    assert "third" in done.stdout
    answers(served, "third")


@pytest.mark.thorough
def test_a_ray_cluster(serve, tmp_path, monkeypatch):
    cluster = RayCluster(head_cpus=2)
    try:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "cluster.yaml").write_text(CLUSTER_YAML, encoding="utf-8")
        served = serve(*COMMANDS[7][1:], *SMALL, KVARN_DATA_DIR=str(tmp_path), RAY_ADDRESS=cluster.address)
        answers(served, "small")
        served.process.terminate()
        served.process.wait()
    finally:
        cluster.stop()
