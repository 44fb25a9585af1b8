"""Replicas on a Ray cluster of several nodes: real raylets, real engine processes, TCP with keys between them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conditions import collect, lives, until
from kvarn.config.fleet import RayConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.placement.packing import Needs
from kvarn.fleet.ray.launcher import RayEngine, RayLauncher
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.endpoint import CurveKeys
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit
from ray_cluster import RayCluster

ENGINES = Path(__file__).parent / "engines"
WAIT_S = 180.0
MIB = 1024 * 1024
CONFIG = ReplicaConfig(heartbeat_interval_s=0.2, heartbeat_timeout_s=10.0, restart_backoff_s=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head without room for engines, and two nodes with room for two each. Each test that removes one adds one."""
    started = RayCluster(PYTHONPATH=str(ENGINES))  # for Ray's workers, which start the engines
    for _ in range(2):
        started.add_node(cpus=2)
    yield started
    started.stop()


class Fleet:
    """One gateway's launcher, supervisors and clients."""

    def __init__(
        self,
        cluster: RayCluster,
        namespace: str,
        cpus: float = 1,
        place_timeout_s: float = 40,
        orphan_timeout_s: float = WAIT_S,
    ) -> None:
        config = RayConfig(
            address=cluster.address,
            namespace=namespace,
            place_timeout_s=place_timeout_s,
            orphan_timeout_s=orphan_timeout_s,
        )
        self.launcher = RayLauncher(config, lambda spec: Needs(64 * MIB, cpus))
        self.closed = False
        self.supervisors: dict[str, EngineSupervisor] = {}
        self.clients: dict[str, ZmqReplicaClient] = {}
        self.launcher.start()

    def add(self, spec: ReplicaSpec, last_run: int = 0) -> EngineSupervisor:
        supervisor = EngineSupervisor(spec, CONFIG, self.launcher, last_run=last_run)
        client = self.clients[spec.replica] = ZmqReplicaClient(spec.replica)
        supervisor.subscribe(client.update)
        self.supervisors[spec.replica] = supervisor
        supervisor.start()
        return supervisor

    def engine(self, replica: str) -> RayEngine:
        supervisor = self.supervisors[replica]
        engine = self.launcher.engines[f"{replica}#{supervisor.lifecycle.run}"]
        assert isinstance(engine, RayEngine)
        return engine

    async def close(self, *, leave: bool = False) -> None:
        for client in self.clients.values():
            client.close()
        ends = [each.leave() if leave else each.stop() for each in self.supervisors.values()]
        await asyncio.gather(*ends)
        await self.launcher.stop()
        self.closed = True


@pytest.fixture
async def make_fleet(cluster: RayCluster, request: pytest.FixtureRequest) -> AsyncGenerator[Callable[..., Fleet], None]:
    fleets: list[Fleet] = []

    def make(**options: Any) -> Fleet:
        fleets.append(Fleet(cluster, request.node.name[:40], **options))
        return fleets[-1]

    yield make
    for fleet in fleets:
        if not fleet.closed:
            await fleet.close()


@pytest.fixture
def spec(make_spec: Callable[..., ReplicaSpec]) -> Callable[[str], ReplicaSpec]:
    return lambda replica, **script: msgspec.structs.replace(make_spec(**script), replica=replica)


async def test_an_engine_of_the_cluster_answers_over_tcp_and_only_whoever_has_its_keys(
    make_fleet: Callable[..., Fleet], spec: Any, submit: Callable[..., Submit]
) -> None:
    fleet = make_fleet()
    supervisor = fleet.add(spec("a"))
    await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
    endpoint = fleet.engine("a").endpoint
    assert endpoint.engine.startswith("tcp://")
    assert endpoint.keys is not None
    assert endpoint.keys.engine_secret == ""
    assert len(await collect(fleet.clients["a"], submit(max_tokens=5))) == 5

    stranger = ZmqReplicaClient("a", gateway=7)
    others = CurveKeys.make()
    forged = msgspec.structs.replace(endpoint.keys, gateway=others.gateway, gateway_secret=others.gateway_secret)
    stranger.update(msgspec.structs.replace(supervisor.status, endpoint=msgspec.structs.replace(endpoint, keys=forged)))
    with pytest.raises((TimeoutError, ReplicaLostError)):
        await asyncio.wait_for(collect(stranger, submit("stranger")), 2)
    stranger.close()
    assert len(await collect(fleet.clients["a"], submit("again", max_tokens=5))) == 5


@pytest.mark.thorough
async def test_replicas_of_a_node_that_dies_are_started_on_another_while_the_others_serve(
    make_fleet: Callable[..., Fleet], cluster: RayCluster, spec: Any, submit: Callable[..., Submit]
) -> None:
    fleet = make_fleet()
    for name in ("a", "b", "c"):
        fleet.add(spec(name))
    for supervisor in fleet.supervisors.values():
        await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
    nodes = {name: fleet.engine(name).node for name in fleet.supervisors}
    assert len(set(nodes.values())) == 2, "three engines do not fit on one node"
    lost_node = nodes["a"]
    survivor = next(name for name, node in nodes.items() if node != lost_node)
    lost = [name for name, node in nodes.items() if node == lost_node]

    await asyncio.to_thread(cluster.add_node, 2)
    await asyncio.to_thread(cluster.kill_node, lost_node)
    await until(lambda: all(fleet.clients[name].state is not ReplicaState.READY for name in lost), "noticed")
    number = 0
    while any(fleet.clients[name].state is not ReplicaState.READY for name in lost):
        number += 1
        assert len(await collect(fleet.clients[survivor], submit(f"meanwhile-{number}", max_tokens=3))) == 3
        await asyncio.sleep(0.05)
        assert number < WAIT_S / 0.05
    for name in lost:
        assert fleet.engine(name).node != lost_node
        assert len(await collect(fleet.clients[name], submit(f"moved-{name}", max_tokens=3))) == 3


@pytest.mark.thorough
async def test_an_engine_on_a_node_that_ray_drains_is_announced_and_finishes_what_runs(
    make_fleet: Callable[..., Fleet], cluster: RayCluster, spec: Any, submit: Callable[..., Submit]
) -> None:
    fleet = make_fleet()
    supervisor = fleet.add(spec("a", step_s=0.02))
    await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
    node = fleet.engine("a").node
    running = asyncio.create_task(collect(fleet.clients["a"], submit(max_tokens=300)))
    await until(lambda: fleet.clients["a"].stats.running == 1)
    await asyncio.to_thread(cluster.drain_node, node, 120)
    await until(lambda: fleet.clients["a"].state is ReplicaState.DRAINING)
    assert supervisor.lifecycle.drains_by_itself
    assert len(await running) == 300
    await until(lambda: supervisor.lifecycle.state is ReplicaState.GONE)
    await asyncio.to_thread(cluster.kill_node, node)
    await asyncio.to_thread(cluster.add_node, 2)


async def test_a_gateway_that_starts_takes_over_the_engines_of_the_one_before(
    make_fleet: Callable[..., Fleet], spec: Any, submit: Callable[..., Submit]
) -> None:
    first = make_fleet()
    await asyncio.wait_for(first.add(spec("a")).wait_until_ready(), WAIT_S)
    pid, run = first.engine("a").pid, first.supervisors["a"].lifecycle.run
    await first.close(leave=True)

    second = make_fleet()
    supervisor = second.add(spec("a"), last_run=100)
    await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
    assert (second.engine("a").pid, supervisor.lifecycle.run) == (pid, run)
    assert len(await collect(second.clients["a"], submit(max_tokens=5))) == 5


async def test_engines_that_nobody_looks_after_end(
    make_fleet: Callable[..., Fleet], spec: Any, submit: Callable[..., Submit]
) -> None:
    fleet = make_fleet(orphan_timeout_s=8)
    await asyncio.wait_for(fleet.add(spec("a")).wait_until_ready(), WAIT_S)
    pid = fleet.engine("a").pid  # the cluster's nodes are on this machine
    await fleet.close(leave=True)
    await until(lambda: not lives(pid), "the engine ended")


@pytest.mark.thorough
async def test_an_agent_that_dies_is_replaced_and_its_engines_go_on(
    make_fleet: Callable[..., Fleet], spec: Any, submit: Callable[..., Submit]
) -> None:
    fleet = make_fleet()
    await asyncio.wait_for(fleet.add(spec("a")).wait_until_ready(), WAIT_S)
    pid = fleet.engine("a").pid
    agent = fleet.launcher.agent_pid
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    await until(lambda: agent != fleet.launcher.agent_pid and fleet.launcher.connected.is_set(), "replaced")
    assert fleet.clients["a"].starts == 1
    assert len(await collect(fleet.clients["a"], submit(max_tokens=5))) == 5
    os.kill(pid, 9)
    await until(lambda: fleet.clients["a"].starts == 2, "a new engine")
    assert fleet.engine("a").pid != pid


@pytest.mark.thorough
async def test_a_replica_that_fits_nowhere_says_so_and_leaves_nothing_behind(
    make_fleet: Callable[..., Fleet], cluster: RayCluster, spec: Any
) -> None:
    fleet = make_fleet(cpus=64, place_timeout_s=10)
    supervisor = fleet.add(spec("large"))
    with pytest.raises(ReplicaLostError, match=r"no machine has room for 64 CPU, 0.1 GiB; free in all: [0-9]+ CPU"):
        await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
    await fleet.close()
    assert fleet.launcher.engines == {}
