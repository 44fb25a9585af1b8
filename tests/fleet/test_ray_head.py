"""The head of a Ray cluster is killed: what runs goes on serving for as long as Ray lets it, then waits for a head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conditions import until
from kvarn.config.fleet import RayConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.placement.packing import Needs
from kvarn.fleet.ray.launcher import RayLauncher
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.protocol import ReplicaState
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit
from profiles import effort
from ray_cluster import RayCluster

ENGINES = Path(__file__).parent / "engines"
WAIT_S = 240.0
CONFIG = ReplicaConfig(heartbeat_interval_s=0.2, heartbeat_timeout_s=3.0, restart_backoff_s=0.1)


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_engines_serve_without_the_head_and_are_started_again_when_there_is_another(
    make_spec: Callable[..., ReplicaSpec], submit: Callable[..., Submit]
) -> None:
    cluster = await asyncio.to_thread(RayCluster, PYTHONPATH=str(ENGINES))
    clusters = [cluster]
    await asyncio.to_thread(cluster.add_node, 1)
    config = RayConfig(address=cluster.address, namespace="head", place_timeout_s=30)
    launcher = RayLauncher(config, lambda spec: Needs(2**26, 1))
    launcher.start()
    supervisor = EngineSupervisor(msgspec.structs.replace(make_spec(), replica="a"), CONFIG, launcher)
    client = ZmqReplicaClient("a")
    supervisor.subscribe(client.update)
    seen: list[Any] = []
    supervisor.subscribe(lambda status: seen.append(status.stage))

    async def answer(number: int) -> list[int]:
        request = submit(f"r{number}", max_tokens=3)
        return [token async for delta in client.generate(request) for token in delta.token_ids]

    try:
        supervisor.start()
        await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
        await asyncio.to_thread(cluster.kill_head)
        for number in range(effort(50, 200)):  # 5 s, or 20
            assert len(await asyncio.wait_for(answer(number), WAIT_S)) == 3
            await asyncio.sleep(0.1)
        assert client.starts == 1
        if not effort(0, 1):
            return

        # Ray ends nodes that have not reached their head for a minute, and the engines with them.
        await until(lambda: not launcher.connected.is_set(), "the agent says that there is no way to Ray", WAIT_S)
        await until(
            lambda: any("no Ray cluster" in stage for stage in seen), "the replica says what it waits for", WAIT_S
        )
        port = int(cluster.address.rpartition(":")[2])
        clusters.append(await asyncio.to_thread(RayCluster, 0, port, PYTHONPATH=str(ENGINES)))
        await asyncio.to_thread(clusters[-1].add_node, 1)
        await until(
            lambda: client.starts == 2 and client.state is ReplicaState.READY, "an engine on the new cluster", WAIT_S
        )
        assert len(await answer(-1)) == 3
    finally:
        client.close()
        await supervisor.leave()
        await launcher.stop()
        for each in clusters:
            await asyncio.to_thread(each.stop)
