"""Which models have a process that waits, and that process in a real engine."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from conditions import collect, until
from kvarn.config.model import ModelConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.autoscale.counts import HALF_LIFE_S, LEAST, Popularity, most_popular
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.protocol import ReplicaState
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.wire.messages import ModelCard, Submit
from kvarn.wire.sampling import SamplingParams

requests = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50), st.floats(0, 20_000)), max_size=30)


@given(requests, st.sets(st.sampled_from("abcd")), st.integers(0, 5))
def test_the_pool_is_of_the_idle_models_that_were_asked_for_most_and_latest(
    asked: list[tuple[str, int, float]], idle: set[str], size: int
) -> None:
    popularity, now = Popularity(), 20_000.0
    for model, count, at in sorted(asked, key=lambda each: each[2]):
        popularity.add(model, count, at)
    expected = {
        model: sum(count * 2 ** ((at - now) / HALF_LIFE_S) for asked_for, count, at in asked if asked_for == model)
        for model in "abcd"
    }
    chosen = most_popular(popularity, idle, size, now)
    assert len(chosen) <= size and set(chosen) <= idle
    for model in idle:
        assert abs(popularity.of(model, now) - expected[model]) < 1e-6 * (1 + expected[model])
        if model not in chosen and expected[model] > LEAST + 1e-6:
            assert len(chosen) == size
            assert all(expected[other] >= expected[model] - 1e-6 for other in chosen)


def test_a_single_request_counts_for_an_hour() -> None:
    popularity = Popularity()
    popularity.add("m", 1, 0.0)
    assert most_popular(popularity, ["m", "never"], 2, HALF_LIFE_S - 1) == ["m"]
    assert most_popular(popularity, ["m", "never"], 2, HALF_LIFE_S + 1) == []


def demo_spec() -> ReplicaSpec:
    config = ModelConfig.model_validate({"name": "m", "path": "kvarn-demo", "threads": 1, "kv_cache_gib": 0.05})
    directory = str(resolve_checkpoint("kvarn-demo"))
    return ReplicaSpec(model=config.model_dump_json(), directory=directory, warm=True, log_level="warning")


async def ready(supervisor: EngineSupervisor) -> ModelCard:
    async with asyncio.timeout(120):
        return await supervisor.wait_until_ready()


async def answer(supervisor: EngineSupervisor) -> list[int]:
    """Tokens of a greedy answer, by a client of its own."""
    client = ZmqReplicaClient("m")
    try:
        client.update(supervisor.status)
        sampling = SamplingParams(temperature=0, max_tokens=8, seed=0)
        return await collect(client, Submit(request_id="r", prompt_token_ids=[5, 6, 7], sampling=sampling))
    finally:
        client.close()


async def test_a_process_waits_until_it_is_activated_and_then_loads_the_model_once() -> None:
    supervisor = EngineSupervisor(demo_spec(), ReplicaConfig(heartbeat_timeout_s=60, start_timeout_s=120))
    supervisor.start()
    try:
        await until(lambda: supervisor.lifecycle.state is ReplicaState.WARM)
        pid = supervisor.pid
        assert supervisor.status.state is ReplicaState.STARTING and supervisor.status.card is None
        supervisor.activate()
        card = await ready(supervisor)
        assert supervisor.pid == pid
        phases = list(card.start_s)
        assert phases.index("import") < phases.index("wait to be activated") < phases.index("load weights")
        assert phases.count("allocate the KV cache") == 1
    finally:
        await supervisor.stop()


async def test_an_engine_that_slept_answers_as_before_in_the_same_process() -> None:
    spec = msgspec.structs.replace(demo_spec(), warm=False)
    supervisor = EngineSupervisor(spec, ReplicaConfig(heartbeat_timeout_s=60, start_timeout_s=120))
    heard: list[ReplicaState] = []
    supervisor.start()
    try:
        await ready(supervisor)
        pid, want = supervisor.pid, await answer(supervisor)
        for _ in range(2):
            supervisor.subscribe(lambda status: heard.append(status.state))
            await supervisor.sleep(5)
            assert supervisor.lifecycle.state is ReplicaState.ASLEEP
            assert heard[-2:] == [ReplicaState.DRAINING, ReplicaState.GONE]
            supervisor.activate()
            card = await ready(supervisor)
            assert supervisor.pid == pid and await answer(supervisor) == want
            assert {"fall asleep", "wait to be activated", "load weights"} <= card.start_s.keys()
            assert heard[-1] is ReplicaState.GONE, "who was told that it is gone hears no more"
    finally:
        await supervisor.stop()
