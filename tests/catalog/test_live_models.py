"""Versions of models that come and go in a gateway process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvarn.catalog.live_models import LiveModels
from kvarn.config.gateway import GatewayConfig
from kvarn.config.model import ModelConfig
from kvarn.fleet.desired import Desired
from kvarn.fleet.versions import ServedVersion
from kvarn.replica.client.protocol import ReplicaState, ReplicaStatus


def version(checkpoint: Path, number: int) -> ServedVersion:
    return ServedVersion(Desired(ModelConfig(name="m", path="m"), number), checkpoint, 1)


async def test_a_version_that_is_removed_while_it_is_loaded_is_not_served(checkpoint: Path) -> None:
    live = LiveModels(GatewayConfig())
    added: list[int] = []
    live.on_added = lambda model: added.append(model.version)
    first = live.version_added(version(checkpoint, 1))
    live.update(ReplicaStatus(model="m", replica="m/v1/0", version=1, state=ReplicaState.STARTING))
    live.version_removed("m", 1)
    again = live.version_added(version(checkpoint, 1))
    await first
    assert live.by_name == {}, "the second of that number is still loaded"
    await again
    await live.version_added(version(checkpoint, 2))
    assert [each.version for each in live.versions] == [1, 2] == added
    assert list(live.by_name["m"].replicas) == []
    for number in (1, 2):
        live.version_removed("m", number)
    assert live.by_name == {} and live.versions == []
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # their templates' processes are closed
