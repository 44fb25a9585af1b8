"""The controller's loop with real engine processes on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable

import pytest

from conditions import until
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.checkpoints import find_checkpoints
from kvarn.fleet.controller import FleetController
from kvarn.fleet.desired import DesiredState
from kvarn.fleet.engines import Engines, launcher_of
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.fleet.versions import ServedVersion
from kvarn.replica.client.protocol import ReplicaState


class Fleet:
    """What `kvarn serve` runs of the fleet, and which replicas were added since."""

    def __init__(self, config: KvarnConfig) -> None:
        self.desired = DesiredState(config).models
        self.engines = Engines(config, desired=self.desired)
        self.launcher = launcher_of(config, self.engines)
        self.controller = FleetController(config, self.engines, self.launcher, self.desired, self._read)
        self.controller.listen(self)
        self.added: list[str] = []
        self.engines.start()
        self.controller.start()

    async def _read(self):
        return self.desired

    async def version_added(self, version: ServedVersion) -> None:
        """See `FleetListener`."""

    def replica_added(self, supervisor: EngineSupervisor) -> None:
        self.added.append(supervisor.status.replica)

    def version_removed(self, model: str, version: int) -> None:
        """See `FleetListener`."""

    @property
    def states(self) -> dict[str, ReplicaState]:
        return {name: each.status.state for name, each in self.engines.supervisors.items()}

    @property
    def pids(self) -> dict[str, int | None]:
        return {name: each.pid for name, each in self.engines.supervisors.items()}

    async def until_ready(self, count: int) -> None:
        """Until there are so many replicas, and all are ready."""
        await until(lambda: list(self.states.values()) == [ReplicaState.READY] * count)

    async def close(self) -> None:
        await self.controller.stop()
        await self.engines.stop()


@pytest.fixture
async def make_fleet(tmp_path) -> AsyncGenerator[Callable[..., Fleet], None]:
    fleets: list[Fleet] = []

    def make(**model: object) -> Fleet:
        settings = {"name": "m", "path": "kvarn-demo", "threads": 1, "kv_cache_gib": 0.1} | model
        replica = {"restart_backoff_s": 0.05, "separate_cores": False}
        config = {"models": [settings], "data_dir": str(tmp_path), "replica": replica, "fleet": {"poll_s": 0.2}}
        fleets.append(Fleet(KvarnConfig.model_validate(config)))
        return fleets[-1]

    yield make
    for fleet in fleets:
        await fleet.close()


async def test_a_replica_that_is_taken_out_for_its_answers_is_not_replaced(make_fleet):
    fleet = make_fleet(replicas=2)
    await fleet.until_ready(2)
    first, second = before = fleet.pids
    await fleet.engines.take_out_of_service(first, restart=True)
    await fleet.until_ready(2)
    assert fleet.added == []
    assert fleet.pids[first] != before[first] and fleet.pids[second] == before[second]

    await fleet.engines.take_out_of_service(first, restart=False)
    assert fleet.states == {first: ReplicaState.DOWN, second: ReplicaState.READY}
    fleet.desired["m"] = dataclasses.replace(fleet.desired["m"], replicas=1)
    fleet.controller.wake()
    await fleet.until_ready(1)
    assert fleet.pids == {second: before[second]} and fleet.added == []


def test_an_engine_is_told_which_settings_are_the_operators() -> None:
    """It lowers what is not: `engine.max_num_seqs` where recurrent states do not fit."""
    for engine in ({}, {"max_num_seqs": 256}):
        config = KvarnConfig.model_validate({"models": [{"name": "m", "path": "kvarn-demo", "engine": engine}]})
        (model,) = config.models
        told = Engines(config).replica_spec(find_checkpoints(model), 0).model_config
        assert told == model
        assert told.engine.model_fields_set == set(engine)
