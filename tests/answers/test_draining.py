"""Real engine processes that are drained, restarted and replaced while they answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import kvarn
from kvarn.catalog.failover import ResumableRequest, generate_anywhere
from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.model import ModelConfig
from kvarn.config.replica import FailoverConfig, ReplicaConfig, RoutingConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import AdapterInfo, Submit
from kvarn.wire.sampling import SamplingParams
from profiles import effort

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
CONFIG = ReplicaConfig(heartbeat_interval_s=0.1, restart_backoff_s=0.05)


class Fleet:
    """Replicas of the demo model, and those who wait for answers."""

    def __init__(self) -> None:
        self.replicas = ReplicaSet(routing=RoutingConfig())
        self.supervisors: list[EngineSupervisor] = []
        self._numbers = itertools.count()

    async def start(self) -> EngineSupervisor:
        model = ModelConfig(name="demo", path="kvarn-demo", threads=1, kv_cache_gib=0.05)
        spec = ReplicaSpec(
            model=model.model_dump_json(), replica=f"r{next(self._numbers)}", directory=str(DEMO), log_level="warning"
        )
        supervisor = EngineSupervisor(spec, CONFIG)
        supervisor.subscribe(self.replicas.update)
        self.supervisors.append(supervisor)
        supervisor.start()
        await supervisor.wait_until_ready()
        return supervisor

    async def answer(self, number: int) -> list[list[int]]:
        sampling = SamplingParams(seed=number, temperature=1.0, max_tokens=400, n=1 + number % 2)
        request_id = f"q{next(self._numbers)}"
        submit = Submit(request_id=request_id, prompt_token_ids=[300 + number, *range(400, 450)], sampling=sampling)
        tokens: list[list[int]] = [[] for _ in range(sampling.n)]
        first = self.replicas.choose(self.replicas.route_of(submit))
        assert first is not None
        async for delta in generate_anywhere(ResumableRequest(self.replicas, first, submit, FailoverConfig())):
            tokens[delta.index] += delta.token_ids
        return tokens


@pytest.fixture
async def fleet() -> AsyncGenerator[Fleet, None]:
    made = Fleet()
    await asyncio.gather(made.start(), made.start())
    yield made
    await asyncio.gather(*[supervisor.stop() for supervisor in made.supervisors])


@pytest.mark.chaos
async def test_no_answer_is_lost_or_other_when_engines_are_restarted_in_turn(fleet):
    """With time to finish, and without: then what runs is handed over."""
    wanted = [await fleet.answer(number) for number in range(4)]
    assert all(len(tokens) == 400 for answer in wanted for tokens in answer)
    restarted = asyncio.Event()

    async def ask(number: int) -> int:
        rounds = 0
        while not restarted.is_set():
            assert await fleet.answer(number) == wanted[number]
            rounds += 1
            await asyncio.sleep(0.1)  # the processor is for what starts meanwhile
        return rounds

    asking = [asyncio.create_task(ask(number % 4)) for number in range(effort(4, 8))]
    for round_ in range(effort(1, 20)):
        for place, supervisor in enumerate(fleet.supervisors):
            before = supervisor.pid
            await supervisor.restart(0.0 if (round_ + place) % 2 else 30.0)
            await supervisor.wait_until_ready()
            assert supervisor.pid != before
    restarted.set()
    assert min(await asyncio.gather(*asking)) > 0


@pytest.mark.thorough
async def test_an_adapter_that_was_loaded_while_a_replica_was_away_is_there_when_it_is_back(fleet):
    away, staying = fleet.supervisors
    name, other = away.status.replica, staying.status.replica
    await away.stop()
    pirate = AdapterInfo(name="pirate", path=str(DEMO.parent / "adapters" / "pirate"))
    await fleet.replicas[other].load_adapter("load", pirate)
    await away.restart(0)
    await away.wait_until_ready()
    late = await asyncio.gather(fleet.start())
    for replica in (name, other, late[0].status.replica):
        client = fleet.replicas[replica]
        sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=20)
        submit = Submit(request_id=f"p-{replica}", prompt_token_ids=[300, 301], sampling=sampling, adapter="pirate")
        assert sum([len(delta.token_ids) async for delta in client.generate(submit)]) == 20
        assert client.adapters["pirate"].digest == fleet.replicas[other].adapters["pirate"].digest != ""
