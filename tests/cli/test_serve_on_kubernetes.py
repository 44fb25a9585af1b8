"""`kvarn serve` with engines in pods, against an API server of the verbs that it may use. Pods are processes here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
import yaml

from conditions import until
from kubernetes_api import FakeKubernetes

WAIT_S = 120.0
BODY = {"model": "small", "prompt": [300, 301, 302], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[FakeKubernetes, None]:
    made = FakeKubernetes(tmp_path, runs_processes=True)
    await made.start()
    yield made
    await made.stop()


@pytest.mark.thorough
async def test_pods_answer_are_replaced_when_evicted_or_lost_and_outlive_their_gateway(
    serve, cluster: FakeKubernetes, tmp_path: Path
) -> None:
    model = {"name": "small", "path": "kvarn-demo", "replicas": 2, "threads": 1, "kv_cache_gib": 0.05}
    fleet = {"launcher": "kubernetes", "lease_s": 2, "kubernetes": cluster.config.model_dump(exclude_unset=True)}
    config = tmp_path / "kvarn.yaml"
    config.write_text(yaml.safe_dump({"models": [model], "fleet": fleet}))
    arguments = ("--config", str(config), "--max-context-length", "512")
    first = await asyncio.to_thread(serve, *arguments, KVARN_DATA_DIR=str(tmp_path))
    answers, over = list[str](), asyncio.Event()

    async def ask(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
            while not over.is_set():
                answer = await client.post("/v1/completions", json=BODY)
                assert answer.status_code == 200, answer.text
                answers.append(answer.json()["choices"][0]["text"])

    async def ready(url: str) -> bool:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
            replicas = (await client.get("/ready")).json()["models"]["small"].get("replicas", {})
            return sorted(replicas.values()) == ["ready", "ready"]

    async def until_both_are_ready(url: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not (await ready(url) and len(cluster.processes) == 2):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    await until_both_are_ready(first.url)
    asking = [asyncio.create_task(ask(first.url)) for _ in range(3)]
    await until(lambda: len(answers) > 5)
    evicted = next(iter(cluster.processes))
    cluster.announce_end(evicted, 60)
    await until(lambda: evicted not in cluster.pods, "it ends")
    await until_both_are_ready(first.url)
    lost = next(iter(cluster.processes))
    os.killpg(cluster.processes[lost].pid, signal.SIGKILL)
    await until(lambda: lost not in cluster.pods, "what is left of it is removed")
    await until_both_are_ready(first.url)
    over.set()
    await asyncio.gather(*asking)
    assert len(set(answers)) == 1, "all answers are alike"

    first.process.kill()
    pods = set(cluster.processes)
    second = await asyncio.to_thread(serve, *arguments, KVARN_DATA_DIR=str(tmp_path))
    await until_both_are_ready(second.url)
    assert set(cluster.processes) == pods, "they are taken over"
    async with httpx.AsyncClient(base_url=second.url, timeout=WAIT_S) as client:
        assert (await client.post("/v1/completions", json=BODY)).json()["choices"][0]["text"] == answers[0]
