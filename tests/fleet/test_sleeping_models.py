"""Models that take turns on GPUs: those that nobody asks for sleep. Processes are real, the GPUs are not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from conditions import until
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.controller import FleetController
from kvarn.fleet.desired import Desired
from kvarn.fleet.engines import Engines
from kvarn.fleet.launch.launcher import LaunchedEngine, ReportStage
from kvarn.fleet.launch.local import LocalLauncher, launch_local
from kvarn.fleet.placement.gpus import Gpu
from kvarn.fleet.placement.packing import GIB, Machine, Needs
from kvarn.fleet.placement.places import Places
from kvarn.replica.client.protocol import ReplicaState
from kvarn.replica.spec import ReplicaSpec

P = ReplicaState


class ScriptedLauncher(LocalLauncher):
    """Starts scripted engines on a machine with GPUs, of which a replica takes nine tenths."""

    def __init__(self, num_gpus: int) -> None:
        gpus = tuple(Gpu(number, f"GPU-{number}", 80 * GIB) for number in range(num_gpus))
        super().__init__(Places([Machine("cpu", 64 * GIB, gpus=gpus)], lambda spec: Needs(GIB, gpus=1, gpu_share=0.9)))
        self.launched: list[str] = []

    async def launch(self, spec: ReplicaSpec, run: int, report: ReportStage = lambda stage: None) -> LaunchedEngine:
        placed = self.places.occupy(spec)
        self.launched.append(spec.model_config.name)
        return launch_local(msgspec.structs.replace(placed, factory="scripted_engine:build", directory=json.dumps({})))


class Counts:
    """`ReplicaCounts` of a test: models that are asked for have a replica, others that once had one have a process."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.known: set[str] = set()

    def count(self, desired: Desired, running: int) -> int:
        return int(desired.model.name in self.asked)

    def pool(self, model: str) -> int:
        return int(model in self.known - self.asked)

    def forget(self) -> None:
        """There is one controller."""


class Turns:
    """The controller of three models, and where their replicas are in their lives."""

    def __init__(self, directory: Path, num_gpus: int) -> None:
        models = [{"name": name, "path": "kvarn-demo"} for name in "abc"]
        replica = {"separate_cores": False, "restart_backoff_s": 0.1}
        settings = {"models": models, "data_dir": str(directory), "fleet": {"poll_s": 0.1}, "replica": replica}
        config = KvarnConfig.model_validate(settings)
        desired = {model.name: Desired(model, replicas=0) for model in config.models}
        self.engines = Engines(config, desired=desired)
        self.launcher, self.counts = ScriptedLauncher(num_gpus), Counts()
        self.controller = FleetController(config, self.engines, self.launcher, desired, counts=self.counts)
        self.controller.start()

    @property
    def phases(self) -> dict[str, ReplicaState]:
        return {each.status.model: each.lifecycle.state for each in self.engines.supervisors.values()}

    @property
    def pids(self) -> dict[str, int | None]:
        return {each.status.model: each.pid for each in self.engines.supervisors.values()}

    async def ask_for(self, *models: str) -> None:
        self.counts.known |= self.counts.asked
        self.counts.asked = set(models)
        self.controller.wake()

    async def close(self) -> None:
        await self.controller.stop()
        await self.engines.stop()


@pytest.fixture
async def turns(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Turns, None]:
    made = Turns(tmp_path, num_gpus=getattr(request, "param", 1))
    yield made
    await made.close()


async def test_two_models_take_turns_on_a_gpu_without_a_process_being_started_again(
    turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    await turns.ask_for("a")
    await until(lambda: turns.phases == {"a": P.READY})
    await turns.ask_for("b")
    await until(lambda: turns.phases == {"a": P.ASLEEP, "b": P.READY})
    pids = turns.pids
    await turns.ask_for("a", "b")
    await until(lambda: "it waits for its GPU" in caplog.text)
    assert turns.phases == {"a": P.ASLEEP, "b": P.READY}
    await turns.ask_for("a")
    await until(lambda: turns.phases == {"a": P.READY, "b": P.ASLEEP})
    await turns.ask_for("b")
    await until(lambda: turns.phases == {"a": P.ASLEEP, "b": P.READY})
    assert turns.pids == pids and turns.launcher.launched == ["a", "b"]


@pytest.mark.thorough
@pytest.mark.parametrize("turns", [2], indirect=True)
async def test_one_whose_gpu_others_have_is_started_anew_on_a_gpu_that_is_free(turns: Turns) -> None:
    await turns.ask_for("a", "b")
    await until(lambda: turns.phases == {"a": P.READY, "b": P.READY})
    await turns.ask_for("b")
    await until(lambda: turns.phases == {"a": P.ASLEEP, "b": P.READY})
    await turns.ask_for("b", "c")
    await until(lambda: turns.phases == {"a": P.ASLEEP, "b": P.READY, "c": P.READY})
    await turns.ask_for("c")
    await until(lambda: turns.phases == {"a": P.ASLEEP, "b": P.ASLEEP, "c": P.READY})
    before = turns.pids
    await turns.ask_for("a", "c")
    await until(lambda: turns.phases == {"a": P.READY, "b": P.ASLEEP, "c": P.READY})
    assert {name for name, pid in turns.pids.items() if pid != before[name]} == {"a"}
    assert turns.launcher.launched == ["a", "b", "c", "a"]


@pytest.mark.thorough
async def test_a_replica_whose_process_dies_while_it_sleeps_waits_as_a_new_process(turns: Turns) -> None:
    await turns.ask_for("a")
    await until(lambda: turns.phases == {"a": P.READY})
    await turns.ask_for()
    await until(lambda: turns.phases == {"a": P.ASLEEP})
    (supervisor,), (pid,) = turns.engines.supervisors.values(), turns.pids.values()
    supervisor.kill()
    await until(lambda: turns.phases == {"a": P.WARM} and turns.pids != {"a": pid})
    await turns.ask_for("a")
    await until(lambda: turns.phases == {"a": P.READY})
