"""Rollouts in real engines: two versions of the demo model behind a gateway under load. A version that is worse is
rolled back within 200 requests, one that is not is promoted, and no client sees an error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.catalog.models import ServedModel
from kvarn.config.replica import ReplicaConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.gateway.app import create_app
from kvarn.quality.golden import golden_set_path, read_golden_set
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint
from profiles import effort
from watched_fleet import ENGINES

FAST = {
    "steps": [0.3, 0.6, 1.0],
    "shadow_requests": 30,
    "step_requests": 60,
    "step_min_s": 0,
    "check_interval_s": 0.2,
    "golden_prompts": 0,
}

WITHIN = 400
"""Requests that a worse version may have. 200 are the goal; a busy machine checks less often."""


class Versions:
    """A gateway with two versions of the deployment `chat`, and clients that ask for it again and again."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client
        self.statuses: list[int] = []
        path = golden_set_path("kvarn-demo", None)
        assert path is not None
        self._questions = [each for each in read_golden_set(path) if each.tools is None]

    async def roll_out(self, **settings: Any) -> dict[str, Any]:
        """Begin a rollout under load; returns how it ended."""
        body = {"model": "chat", "settings": {"engine": {"max_num_seqs": 8}}, "rollout": FAST | settings}
        begun = await self.client.post("/v1/organization/deployments", json=body)
        assert begun.json()["rollout"]["phase"] == "shadow", begun.text
        ended = asyncio.Event()
        load = asyncio.gather(*(self._ask(worker, ended) for worker in range(8)))
        try:
            async with asyncio.timeout(110):
                while (await self.state())["phase"] in ("shadow", "canary"):  # noqa: ASYNC110  clients can only ask
                    await asyncio.sleep(0.1)
        finally:
            ended.set()
            await load
        assert set(self.statuses) == {200}
        return await self.state()

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/v1/rollouts/chat")).json()
        return found

    @property
    def had(self) -> int:
        """Requests that the new version had, copies among them."""
        trials: int = self.app.state.gateway.control.rollouts.rollouts["chat"].gates.begun[0].errors.trials
        return trials

    async def _ask(self, worker: int, ended: asyncio.Event) -> None:
        source = random.Random(worker)
        while not ended.is_set():
            question = source.choice(self._questions)
            body = {
                "model": "chat",
                "messages": question.messages,
                "temperature": source.choice((0, 1)),
                "max_tokens": 40,
            }
            answer = await self.client.post("/v1/chat/completions", json=body)
            self.statuses.append(answer.status_code)


@asynccontextmanager
async def serve(folder: Path, *factories: str) -> AsyncGenerator[Versions, None]:
    """`factories` make the engines of the stable version and of the candidate."""
    model = {"path": "kvarn-demo", "kv_cache_gib": 0.05, "threads": 1, "speculation": {"method": "none"}}
    config = KvarnConfig.model_validate(
        {"models": [{"name": "chat", **model}], "data_dir": str(folder), "batches": {"enabled": False}}
    )
    directory, versions, supervisors = resolve_checkpoint("kvarn-demo"), [], []
    for number, factory in enumerate(factories):
        spec = ReplicaSpec(
            model=config.models[0].model_dump_json(),
            directory=str(directory),
            log_level="warning",
            factory=f"changed_engine:{factory}",
        )
        served = ServedModel("chat", config.models[0], [], directory, version=number, held_back=number > 0)
        versions.append(served)
        served.versions = versions
        supervisor = EngineSupervisor(spec, ReplicaConfig(heartbeat_timeout_s=60))
        supervisor.launch()
        supervisor.subscribe(served.replicas.update)
        supervisor.start()
        supervisors.append(supervisor)
    app = create_app(config, {"chat": versions[0]})
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    try:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client,
        ):
            async with asyncio.timeout(60):
                for served in versions:
                    while not served.replicas.ready:
                        await served.changed()
            versions[1].text = versions[0].text
            yield Versions(app, client)
    finally:
        await asyncio.gather(*(supervisor.stop() for supervisor in supervisors))
        for served in versions:
            served.replicas.close()


@pytest.fixture(autouse=True)
def _engines_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ENGINES))
    monkeypatch.delenv("KVARN_DATA_DIR", raising=False)


@pytest.mark.thorough
async def test_an_identical_version_is_promoted(tmp_path: Path) -> None:
    async with serve(tmp_path, "build", "build") as versions:
        # Other work on this machine may slow down either version.
        state = await versions.roll_out(identical=True, tolerated_slowdown=10.0)
        assert (state["phase"], state["share"], state["failure"]) == ("promoted", 1.0, "")
        assert [entry["action"] for entry in state["log"]] == ["start", "step", "step", "step", "promote"]


@pytest.mark.thorough
async def test_logit_noise_fails_an_identical_version_in_the_shadow(tmp_path: Path) -> None:
    async with serve(tmp_path, "build", "build_noisy") as versions:
        state = await versions.roll_out(identical=True, shadow_requests=1000)
        assert (state["phase"], state["share"]) == ("rolled_back", 0.0)
        assert state["failure"].startswith("tokens:")
        assert versions.had <= WITHIN
        assert all(entry["share"] == 0 for entry in state["log"])


@pytest.mark.skipif(
    not effort(0, 1), reason="it compares latencies, for which the machine must be idle: make test-long"
)
async def test_a_version_that_is_a_fifth_slower_is_rolled_back(tmp_path: Path) -> None:
    async with serve(tmp_path, "build_paced", "build_slow") as versions:
        state = await versions.roll_out(shadow_requests=0, step_requests=190, steps=[0.4, 1.0])
        assert state["phase"] == "rolled_back", state["gates"]
        assert state["failure"].startswith(("tpot:", "ttft:"))
        assert versions.had <= WITHIN
