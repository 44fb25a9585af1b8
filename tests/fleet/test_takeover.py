"""A controller takes over engines that outlived the one before; real engine processes that no gateway is parent of."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
from collections.abc import AsyncGenerator, Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from conditions import until
from kvarn.catalog.failover import ResumableRequest, generate_anywhere
from kvarn.catalog.live_models import LiveModels
from kvarn.config.replica import FailoverConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.controller import FleetController
from kvarn.fleet.desired import Desired, DesiredModels, DesiredState
from kvarn.fleet.engines import Engines
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher, ReportStage
from kvarn.fleet.launch.process_exit import describe_exit, exit_of
from kvarn.fleet.placement.places import Places
from kvarn.fleet.supervision.lifecycle import LifecycleTimeouts
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.fleet.versions import ServedVersion
from kvarn.replica.client.protocol import ReplicaState, RequestRefusedError
from kvarn.replica.endpoint import CurveKeys, Endpoint, free_address
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit
from remote_engines import end_engine, run_engine

WAIT_S = 120.0
HOST = "127.0.0.1"
AUTOSCALE = {"min_replicas": 1, "max_replicas": 4, "scale_in_delay_s": 600}


class Engine:
    """A process of `Machines`, as one controller sees it."""

    def __init__(self, popen: subprocess.Popen[bytes], endpoint: Endpoint, supervisor: str) -> None:
        self.popen = popen
        self.pid = popen.pid
        self.endpoint = endpoint
        self.supervisor = supervisor
        self.exited: asyncio.Future[str | None] = asyncio.ensure_future(self._wait())
        self.announced: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.kill = popen.kill

    async def _wait(self) -> str | None:
        status = await exit_of(self.popen)
        return None if status == 0 else describe_exit(status)

    def close(self) -> None:
        """It is gone."""


class Machines(Launcher):
    """A launcher whose engines live on without it, as Ray's."""

    on_this_machine = False
    places = Places()

    def __init__(self) -> None:
        self.engines: dict[tuple[str, int], Engine] = {}
        """All that were launched, by replica and run."""
        self.script = {"step_s": 0.02}
        """See `scripted_engine`."""

    async def launch(self, spec: ReplicaSpec, run: int, report: ReportStage = lambda stage: None) -> LaunchedEngine:
        keys, supervisor = CurveKeys.make(), free_address(HOST)
        endpoint = Endpoint(engine=free_address(HOST), gateway_host=HOST)
        own = msgspec.structs.replace(endpoint, keys=keys.for_engine())
        remote = msgspec.structs.replace(spec, endpoint=own, supervisor=supervisor, orphan_timeout_s=WAIT_S)
        remote = msgspec.structs.replace(remote, factory="scripted_engine:build", directory=json.dumps(self.script))
        popen = run_engine(remote)
        theirs = msgspec.structs.replace(endpoint, keys=keys.for_gateway())
        engine = self.engines[spec.replica, run] = Engine(popen, theirs, supervisor)
        return engine

    def _living(self) -> dict[tuple[str, int], Engine]:
        return {key: each for key, each in self.engines.items() if each.popen.poll() is None}

    async def adopt(self, replica: str) -> dict[int, LaunchedEngine]:
        return {
            run: Engine(each.popen, each.endpoint, free_address(HOST))
            for (name, run), each in self._living().items()
            if name == replica
        }

    async def replicas(self) -> set[str]:
        return {name for name, _ in self._living()}

    async def end(self, replica: str) -> None:
        for engine in (await self.adopt(replica)).values():
            engine.kill()

    def kill(self) -> None:
        for engine in self.engines.values():
            end_engine(engine.popen)


class Gateway:
    """What `kvarn serve` runs of the fleet."""

    def __init__(self, config: KvarnConfig, machines: Machines, desired: DesiredModels) -> None:
        self.desired = desired
        self.live = LiveModels(config.gateway)
        self.engines = Engines(config, desired=desired)
        self.autoscaling = Autoscaling(config, lambda: list(self.live.by_name.values()), self._metrics, self._now)
        self.controller = FleetController(
            config,
            self.engines,
            machines,
            desired,
            self._read,
            counts=self.autoscaling,
            load_of=self.live.load_of,
        )
        for version in self.controller.versions:
            self.live.add(version)
        self.controller.listen(self.live)

    def start(self) -> None:
        self.controller.start()

    async def _read(self) -> DesiredModels:
        return self.desired

    async def _metrics(self) -> CollectorRegistry:
        return CollectorRegistry()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def ready(self) -> set[int | None]:
        """Process ids of the replicas that are ready."""
        return {each.pid for each in self.engines.supervisors.values() if each.status.state is ReplicaState.READY}

    async def until_ready(self, count: int) -> set[int | None]:
        await until(lambda: len(self.ready) == count == len(self.engines.supervisors), f"{count} are ready")
        return self.ready

    async def leave(self) -> None:
        """As a gateway that ends."""
        self.live.close()
        await self.controller.stop()
        await self.engines.stop()
        for model in self.live.versions:
            await model.close()


@pytest.fixture
def machines() -> Machines:
    return Machines()


@pytest.fixture
async def make_gateway(machines: Machines, tmp_path: Path) -> AsyncGenerator[Callable[..., Gateway], None]:
    gateways = list[Gateway]()

    def make(replicas: int | None = None, heartbeat_timeout_s: float = 5.0, **model: object) -> Gateway:
        settings = {"name": "m", "path": "kvarn-demo", "threads": 1, "kv_cache_gib": 0.05, **model}
        config = KvarnConfig.model_validate(
            {
                "models": [settings],
                "data_dir": str(tmp_path),
                "fleet": {"launcher": "ray", "poll_s": 0.1},
                "replica": {
                    "heartbeat_interval_s": 0.1,
                    "heartbeat_timeout_s": heartbeat_timeout_s,
                    "restart_backoff_s": 0.05,
                },
            }
        )
        desired = DesiredState(config).models
        desired["m"] = dataclasses.replace(desired["m"], replicas=replicas)
        gateways.append(Gateway(config, machines, desired))
        return gateways[-1]

    yield make
    for gateway in gateways:
        await gateway.leave()
    machines.kill()
    async with asyncio.timeout(WAIT_S):
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left)  # versions that were removed close what they had


@pytest.mark.thorough
async def test_an_autoscaled_model_keeps_the_replicas_that_are_taken_over(make_gateway: Callable[..., Gateway]) -> None:
    first = make_gateway(replicas=3, autoscale=AUTOSCALE)
    first.start()
    pids = await first.until_ready(3)
    await first.leave()

    second = make_gateway(autoscale=AUTOSCALE)
    await second.autoscaling.look()  # nothing is known before the fleet is taken over
    assert second.desired["m"].count == 1
    second.start()
    assert await second.until_ready(3) == pids
    for _ in range(3):
        await second.autoscaling.look()
        await second.controller.reconcile()
    assert await second.until_ready(3) == pids
    assert [decision.replicas for _, decision in second.autoscaling.decisions] == [3]


class Ears:
    """A `FleetListener` that notes what becomes of replicas and of versions."""

    def __init__(self) -> None:
        self.heard: list[tuple[int | None, ReplicaState]] = []
        """Process ids and states."""
        self.removed: list[int] = []
        self.tries = 0
        """Versions that it was told of."""
        self.go_on, self.allowed = asyncio.Event(), asyncio.Event()

    async def version_added(self, version: ServedVersion) -> None:
        self.tries += 1
        await self.go_on.wait()
        if not self.allowed.is_set():
            raise ValueError("the hub is away")

    def replica_added(self, supervisor: EngineSupervisor) -> None:
        supervisor.subscribe(lambda status: self.heard.append((supervisor.pid, status.state)))

    def version_removed(self, model: str, version: int) -> None:
        self.removed.append(version)


async def test_a_replica_whose_machine_ends_is_replaced_at_once_and_hands_over_what_does_not_finish_in_time(
    make_gateway: Callable[..., Gateway], machines: Machines, submit: Callable[..., Submit]
) -> None:
    gateway = make_gateway()
    gateway.start()
    (pid,) = await gateway.until_ready(1)
    (engine,) = machines.engines.values()
    replicas, moved = gateway.live.by_name["m"].replicas, list[str]()
    (client,) = replicas.values()
    request = submit(prompt=[1], max_tokens=250)  # at least five seconds
    choice = replicas.choose(replicas.route_of(request))
    assert choice is not None
    resumable = ResumableRequest(
        replicas, choice, request, FailoverConfig(), on_moved=lambda replica, pause_s: moved.append(replica)
    )

    async def answer() -> list[int]:
        return [token async for delta in generate_anywhere(resumable) for token in delta.token_ids]

    running = asyncio.create_task(answer())
    await until(lambda: client.stats.running == 1)
    engine.announced.set_result(LifecycleTimeouts().hand_over_s + 0.5)
    assert await running == list(range(2, 252))
    assert len(moved) == 1 and moved[0] != choice.replica
    assert pid not in await gateway.until_ready(1)


async def test_an_engine_that_drains_is_left_to_end_and_another_takes_its_place(
    make_gateway: Callable[..., Gateway], submit: Callable[..., Submit]
) -> None:
    first = make_gateway()
    first.start()
    (pid,) = await first.until_ready(1)
    (supervisor,) = first.engines.supervisors.values()
    (client,) = first.live.by_name["m"].replicas.values()
    running = client.generate(submit("long", max_tokens=1_000_000))
    await asyncio.wait_for(anext(running), WAIT_S)
    draining = asyncio.create_task(supervisor.drain(WAIT_S))
    with pytest.raises(RequestRefusedError):
        async with asyncio.timeout(WAIT_S):
            for number in count():
                await anext(client.generate(submit(f"late-{number}", max_tokens=1)))
    await first.leave()
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)

    second = make_gateway()
    ears = Ears()
    second.controller.listen(ears)
    second.start()
    await until(lambda: any(seen == pid for seen, _ in ears.heard), "it is found")
    (other,) = await second.until_ready(1)
    assert other != pid and (pid, ReplicaState.READY) not in ears.heard


@pytest.mark.thorough
async def test_an_engine_that_was_taken_over_finishes_its_requests_when_it_is_drained(
    make_gateway: Callable[..., Gateway], submit: Callable[..., Submit]
) -> None:
    first = make_gateway()
    first.start()
    pids = await first.until_ready(1)
    await first.leave()

    second = make_gateway()
    second.start()
    assert await second.until_ready(1) == pids
    (supervisor,) = second.engines.supervisors.values()
    (client,) = second.live.by_name["m"].replicas.values()
    running = client.generate(submit("long", max_tokens=100))
    came = [await asyncio.wait_for(anext(running), WAIT_S)]
    draining = asyncio.create_task(supervisor.drain(WAIT_S))
    async with asyncio.timeout(WAIT_S):
        came += [delta async for delta in running]
        await draining
    assert sum(len(delta.token_ids) for delta in came) == 100


@pytest.mark.thorough
async def test_of_replicas_that_are_too_many_one_that_answers_nothing_is_drained(
    make_gateway: Callable[..., Gateway], submit: Callable[..., Submit]
) -> None:
    gateway = make_gateway(replicas=2)
    gateway.start()
    await gateway.until_ready(2)
    replicas = gateway.live.by_name["m"].replicas
    busy = min(replicas)  # the first where nothing runs
    running = replicas[busy].generate(submit("long", max_tokens=1_000_000))
    await asyncio.wait_for(anext(running), WAIT_S)
    await until(lambda: replicas[busy].stats.running == 1, "its engine has said so")
    gateway.desired["m"] = dataclasses.replace(gateway.desired["m"], replicas=1)
    gateway.controller.wake()
    await gateway.until_ready(1)
    assert list(gateway.engines.supervisors) == [busy]
    await running.aclose()


async def test_an_engine_that_loads_for_longer_than_the_heartbeats_timeout_is_left_to_load(
    make_gateway: Callable[..., Gateway], machines: Machines
) -> None:
    machines.script["load_s"] = 3.0
    gateway = make_gateway(heartbeat_timeout_s=1.0)
    gateway.start()
    await gateway.until_ready(1)
    assert len(machines.engines) == 1


@pytest.mark.thorough
async def test_a_version_is_prepared_beside_the_passes_and_tried_again_where_that_fails(
    make_gateway: Callable[..., Gateway],
) -> None:
    gateway = make_gateway()
    ears = Ears()
    gateway.controller.listen(ears)
    gateway.start()
    (pid,) = await gateway.until_ready(1)
    gateway.desired["m"] = Desired(gateway.desired["m"].model, 1)
    await until(lambda: ears.tries == 1, "it is being prepared")
    await asyncio.wait_for(gateway.controller.reconcile(), WAIT_S)
    assert "version 1 is being prepared" in gateway.controller.problems["m@1"]

    ears.go_on.set()
    await until(lambda: gateway.controller.problems.get("m@1") == "the hub is away", "it says why")
    await until(lambda: ears.tries > 1, "it is tried again")
    assert gateway.controller.problems["m@1"] == "the hub is away" and gateway.ready == {pid}
    ears.allowed.set()
    await until(lambda: {each.status.version for each in gateway.engines.supervisors.values()} == {1}, "served")
    assert await gateway.until_ready(1) != {pid}
    assert gateway.controller.problems == {} and list(gateway.live.by_name) == ["m"]
    assert set(ears.removed[:-1]) == {1}, "what was told of a version that fails is taken back"
