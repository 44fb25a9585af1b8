"""An engine process that falls asleep: what it still answers, and who is answered when it is awake again."""

from __future__ import annotations

import asyncio

import pytest

from conditions import collect, until
from kvarn.replica.client.protocol import ReplicaState


@pytest.mark.thorough
async def test_a_replica_that_is_drained_while_it_falls_asleep_finishes_what_runs(make_replica, submit):
    replica = make_replica(step_s=0.01)
    await replica.wait_until_ready()
    answer = asyncio.create_task(collect(replica, submit(prompt=[1], max_tokens=200)))
    await until(lambda: replica.stats.running == 1)
    sleeping = asyncio.create_task(replica.supervisor.sleep(60))
    await until(lambda: replica.supervisor.lifecycle.state is ReplicaState.FALLING_ASLEEP)
    await replica.supervisor.drain(60)
    await sleeping
    assert await answer == list(range(2, 202))
    assert replica.supervisor.failure is None


async def test_an_engine_that_is_awake_again_knows_only_gateway_processes_that_have_joined_since(
    make_replica, submit, attach
):
    replica = make_replica()
    await replica.wait_until_ready()
    gone = attach(replica, 1)  # it hears nothing of the supervisor: as if it ended while the engine sleeps
    assert await collect(gone, submit(prompt=[1], max_tokens=3)) == [2, 3, 4]
    await replica.supervisor.sleep(60)
    told = gone.stats
    assert told.finished_total == 1
    replica.supervisor.subscribe(replica.update)
    replica.supervisor.activate()
    await replica.wait_until_ready()
    for number in range(5):
        assert await collect(replica, submit(f"r{number}", prompt=[1], max_tokens=3)) == [2, 3, 4]
    assert gone.stats is told
