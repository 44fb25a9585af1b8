"""Rollouts end to end: two versions of the demo model in real engines, behind a gateway under load. A version that is
worse is rolled back within 200 requests, one that is not is promoted, and no client sees an error."""

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
from kvarn.fleet.supervisor import EngineSupervisor
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
    "golden_prompts": 24,
}

WITHIN = 400
"""Requests that a version which is worse may have. 200 are the goal; on a busy machine it is looked at more seldom."""


class Versions:
    """A gateway with the versions `v1` and `v2`, and clients that ask `v1` again and again."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client
        self.statuses: list[int] = []
        path = golden_set_path("kvarn-demo", None)
        assert path is not None
        self._questions = [each for each in read_golden_set(path) if each.tools is None]

    async def roll_out(self, **settings: Any) -> dict[str, Any]:
        """Begin a rollout under load; returns how it ended."""
        body = {"model": "v1", "candidate": "v2", "settings": FAST | settings}
        begun = await self.client.post("/v1/rollouts", json=body)
        ended = asyncio.Event()
        load = asyncio.gather(*(self._ask(worker, ended) for worker in range(8)))
        try:
            async with asyncio.timeout(110):
                while (await self.state())["phase"] in ("shadow", "canary"):  # noqa: ASYNC110  clients can only ask
                    await asyncio.sleep(0.1)
        finally:
            ended.set()
            await load
        assert begun.json()["phase"] == "shadow", begun.text
        assert set(self.statuses) == {200}
        return await self.state()

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/v1/rollouts/v1")).json()
        return found

    @property
    def had(self) -> int:
        """Requests that the new version had, copies among them."""
        trials: int = self.app.state.gateway.rollouts.rollouts["v1"].gates.begun[0].errors.trials
        return trials

    async def _ask(self, worker: int, ended: asyncio.Event) -> None:
        source = random.Random(worker)
        while not ended.is_set():
            question = source.choice(self._questions)
            body = {
                "model": "v1",
                "messages": question.messages,
                "temperature": source.choice((0, 1)),
                "max_tokens": 40,
            }
            answer = await self.client.post("/v1/chat/completions", json=body)
            self.statuses.append(answer.status_code)


@asynccontextmanager
async def serve(folder: Path, factory: str, first: str = "build", **second: Any) -> AsyncGenerator[Versions, None]:
    """`factory` makes the engine of the new version, whose settings are `second`, `first` that of the stable one."""
    common = {"path": "kvarn-demo", "kv_cache_gib": 0.05, "threads": 1, "speculation": {"method": "none"}}
    config = KvarnConfig.model_validate(
        {
            "models": [{"name": "v1", **common}, {"name": "v2", **common, **second}],
            "data_dir": str(folder),
            "batches": {"enabled": False},
        }
    )
    directory, models, supervisors = resolve_checkpoint("kvarn-demo"), {}, []
    for model, make in zip(config.models, (first, factory), strict=True):
        served = models[model.name] = ServedModel(model.name, model, [], directory)
        spec = ReplicaSpec(
            model=model.model_dump_json(),
            directory=str(directory),
            log_level="warning",
            factory=f"changed_engine:{make}",
        )
        supervisor = EngineSupervisor(spec, ReplicaConfig(heartbeat_timeout_s=60))
        supervisor.launch()
        supervisor.subscribe(served.replicas.update)
        supervisor.start()
        supervisors.append(supervisor)
    app = create_app(config, models)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    try:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client,
        ):
            async with asyncio.timeout(60):
                while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110  clients can only ask
                    await asyncio.sleep(0.1)
            yield Versions(app, client)
    finally:
        await asyncio.gather(*(supervisor.stop() for supervisor in supervisors))
        for served in models.values():
            served.replicas.close()


@pytest.fixture(autouse=True)
def _engines_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ENGINES))
    monkeypatch.delenv("KVARN_DATA_DIR", raising=False)


@pytest.mark.thorough
async def test_a_version_that_is_no_worse_is_promoted(tmp_path: Path) -> None:
    async with serve(tmp_path, "build") as versions:
        # What else runs on this machine may slow down either version.
        state = await versions.roll_out(identical=True, tolerated_slowdown=10.0)
        assert (state["phase"], state["share"], state["failure"]) == ("promoted", 1.0, "")
        assert [entry["action"] for entry in state["log"]] == ["start", "step", "step", "step", "promote"]
        again = await versions.client.post("/v1/rollouts", json={"model": "v1", "candidate": "v2"})
        assert "already answers" in again.json()["error"]["message"]
        answer = await versions.client.post("/v1/completions", json={"model": "v1", "prompt": "a", "max_tokens": 1})
        assert answer.headers["x-kvarn-arm"] == "v2"


@pytest.mark.thorough
async def test_logit_noise_fails_an_upgrade_in_the_shadow(tmp_path: Path) -> None:
    async with serve(tmp_path, "build_noisy") as versions:
        state = await versions.roll_out(identical=True, shadow_requests=1000, golden_prompts=0)
        assert (state["phase"], state["share"]) == ("rolled_back", 0.0)
        assert state["failure"].startswith("tokens:")
        assert versions.had <= WITHIN
        assert all(entry["share"] == 0 for entry in state["log"])


async def test_a_wrong_chat_template_is_found_by_golden_prompts(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    async with serve(tmp_path, "build", chat_template=template) as versions:
        state = await versions.roll_out()
        assert state["phase"] == "rolled_back"
        assert state["failure"].startswith(("golden:", "length:"))
        assert versions.had <= WITHIN


@pytest.mark.skipif(
    not effort(0, 1), reason="it compares latencies, for which the machine must be idle: make test-long"
)
async def test_a_version_that_is_a_fifth_slower_is_rolled_back(tmp_path: Path) -> None:
    async with serve(tmp_path, "build_slow", "build_paced") as versions:
        state = await versions.roll_out(golden_prompts=0, shadow_requests=0, step_requests=190, steps=[0.4, 1.0])
        assert state["phase"] == "rolled_back", state["gates"]
        assert state["failure"].startswith(("tpot:", "ttft:"))
        assert versions.had <= WITHIN
        answer = await versions.client.post("/v1/completions", json={"model": "v1", "prompt": "a", "max_tokens": 1})
        assert answer.status_code == 200
        assert "x-kvarn-arm" not in answer.headers


async def test_an_administrator_pauses_resumes_and_rolls_back_at_once(tmp_path: Path) -> None:
    async with serve(tmp_path, "build") as versions:
        client = versions.client
        body = {"model": "v1", "candidate": "v2", "settings": FAST | {"shadow_requests": 0, "golden_prompts": 0}}
        assert (await client.post("/v1/rollouts", json=body)).status_code == 200
        async with asyncio.timeout(60):
            while (await versions.state())["share"] == 0:  # noqa: ASYNC110  clients can only ask
                await asyncio.sleep(0.1)
        paused = await client.post("/v1/rollouts/v1", json={"action": "pause"})
        assert paused.json()["paused"]
        resumed = await client.post("/v1/rollouts/v1", json={"action": "resume"})
        assert not resumed.json()["paused"]
        rolled_back = await client.post("/v1/rollouts/v1", json={"action": "rollback"})
        assert (rolled_back.json()["share"], rolled_back.json()["phase"]) == (0.0, "rolled_back")
        answers = [
            await client.post("/v1/completions", json={"model": "v1", "prompt": "a", "max_tokens": 1}) for _ in range(5)
        ]
        assert all("x-kvarn-arm" not in answer.headers for answer in answers)
        over = await client.post("/v1/rollouts/v1", json={"action": "promote"})
        assert over.status_code == 409
        wrong = await client.post("/v1/rollouts", json={"model": "v1", "candidate": "v2", "settings": {"steps": [0.5]}})
        assert "steps" in wrong.json()["error"]["message"]
        unknown = await client.post("/v1/rollouts", json={"model": "v1", "candidate": "v3"})
        assert "deploy it first" in unknown.json()["error"]["message"]
        missing = await client.get("/v1/rollouts/v2")
        assert missing.status_code == 404
