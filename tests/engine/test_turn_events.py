"""What the engine tells of a request's time, with its first and its last delta."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from engine_adapters import ScriptedAdapters
from kv_connectors import DictConnector
from kvarn.observe.timeline import EngineEventKind, Phase, engine_events, spent_by_phase
from scripted_masks import EveryThird


def kinds(world, request_id: str) -> list[str]:
    return [event.kind.name for event in engine_events(world.events(request_id)) if event.kind.name != "SPENT"]


def numbers(world, request_id: str, kind: EngineEventKind) -> list[dict[str, int]]:
    return [dict(event.numbers) for event in engine_events(world.events(request_id)) if event.kind is kind]


def test_events_come_with_the_first_and_the_last_delta_alone(make_world):
    world = make_world()
    world.submit("a", 20, max_tokens=5)
    world.run()
    assert [delta.events is not None for delta in world.deltas["a"]] == [True, False, False, False, True]
    assert kinds(world, "a") == ["QUEUED", "SCHEDULED", "CHUNK", "FIRST_TOKEN", "FINISHED"]
    assert numbers(world, "a", EngineEventKind.FINISHED) == [
        {"output_tokens": 5, "proposed_tokens": 0, "accepted_tokens": 0, "preemptions": 0}
    ]
    times = [event.at_us for event in engine_events(world.events("a"))]
    assert all(before <= after for before, after in pairwise(times))
    assert spent_by_phase(world.events("a")) == {Phase.DECODE: 40_000}


def test_a_prompt_without_an_answer_tells_all_at_its_end(make_world):
    world = make_world(token_budget=16)
    world.submit("a", 40, max_tokens=0)
    world.run()
    assert kinds(world, "a") == ["QUEUED", "SCHEDULED", "CHUNK", "CHUNK", "CHUNK", "FINISHED"]
    assert spent_by_phase(world.events("a")) == {Phase.PROMPT: 20_000}


def test_a_chunk_tells_what_shared_its_step(make_world):
    world = make_world()
    world.submit("running", 5, max_tokens=20)
    world.step()
    world.submit("a", 30)
    world.submit("b", 20)
    world.run()
    expected = {"tokens": 30, "steps": 1, "rows": 3, "step_tokens": 51}
    assert numbers(world, "a", EngineEventKind.CHUNK) == [expected]


def test_many_chunks_are_told_in_bounded_space(make_world):
    world = make_world(token_budget=16, num_blocks=512, max_context_length=8000)
    world.submit("long", 7000, max_tokens=1)
    world.run()
    chunks = numbers(world, "long", EngineEventKind.CHUNK)
    assert len(chunks) == 16
    assert sum(chunk["tokens"] for chunk in chunks) == 7000
    assert sum(chunk["steps"] for chunk in chunks) == 438


def test_time_in_the_queue_is_told_by_its_reason(make_world):
    world = make_world(max_num_seqs=1)
    world.submit("a", 10, max_tokens=3)
    world.submit("b", 10, max_tokens=1)
    world.run()
    assert spent_by_phase(world.events("b")) == {Phase.WAIT_SLOT: 30_000}
    assert numbers(world, "b", EngineEventKind.QUEUED) == [{"waiting": 1}]


def test_a_request_too_large_for_the_free_memory_waits_for_blocks(make_world):
    world = make_world(num_blocks=8)
    world.submit("a", 80, max_tokens=3)
    world.step()
    world.submit("b", 80, max_tokens=1)
    world.run()
    assert spent_by_phase(world.events("b"))[Phase.WAIT_BLOCKS] == 20_000


def test_a_step_that_others_fill_is_told_as_its_budget(make_world):
    world = make_world(token_budget=16, min_prefill_chunk=16)
    world.submit("a", 33, max_tokens=1)
    world.submit("b", 5, max_tokens=1)
    world.run()
    assert spent_by_phase(world.events("b")) == {Phase.WAIT_BUDGET: 20_000}


def test_waiting_for_an_adapter_and_for_a_mask_is_told(make_world):
    world = make_world(adapters=ScriptedAdapters({"small": 1}, looks=[3]))
    world.submit("a", 10, adapter="small", max_tokens=1)
    world.run()
    assert "ADAPTER_READY" in kinds(world, "a")
    assert spent_by_phase(world.events("a"))[Phase.WAIT_ADAPTER] > 0

    mask = EveryThird()
    mask.ready = False
    world = make_world(masks=lambda message: mask)
    world.submit("b", 10, max_tokens=1)
    world.step(seconds=0.5)
    mask.ready = True
    world.run()
    assert kinds(world, "b")[:3] == ["QUEUED", "MASK_READY", "SCHEDULED"]
    assert spent_by_phase(world.events("b")) == {Phase.WAIT_MASK: 500_000}


def test_waiting_for_blocks_from_a_tier_is_told(make_world):
    connector = DictConnector(far=True)
    world = make_world(num_blocks=12, connector=connector)
    prompt = list(range(100))
    world.submit("a", prompt, max_tokens=1)
    world.run()
    world.submit("other", 150, max_tokens=1)  # its blocks take the place of the first's
    world.run()
    world.submit("b", prompt, max_tokens=1)
    world.run()
    assert kinds(world, "b")[:3] == ["QUEUED", "FETCH_BEGUN", "FETCH_ENDED"]
    (scheduled,) = numbers(world, "b", EngineEventKind.SCHEDULED)
    assert scheduled["loaded_tokens"] > 0


def test_a_preemption_tells_what_is_computed_again(make_world):
    world = make_world(max_num_seqs=1, prefix_cache=False)
    world.submit("batch", 20, priority=10, max_tokens=8)
    world.step()
    world.step()
    world.submit("chat", 5, max_tokens=4)
    world.run()
    assert kinds(world, "batch") == [
        *("QUEUED", "SCHEDULED", "CHUNK", "FIRST_TOKEN"),
        *("PREEMPTED", "RESUMED", "CHUNK", "FINISHED"),
    ]
    assert numbers(world, "batch", EngineEventKind.RESUMED) == [{"recomputed_tokens": 22}]
    assert spent_by_phase(world.events("batch"))[Phase.PREEMPTED] == 40_000


@pytest.mark.parametrize("script", [[(3, 9)], [(3, 0)]], ids=["right", "wrong"])
def test_proposals_are_told_at_the_end(make_world, script):
    world = make_world(proposals=script)
    world.submit("a", 10, max_tokens=9)
    world.run()
    (finished,) = numbers(world, "a", EngineEventKind.FINISHED)
    assert finished["proposed_tokens"] > 0
    assert (finished["accepted_tokens"] > 0) == (script == [(3, 9)])


def test_phases_sum_to_the_time_of_a_request_however_long_steps_take(make_world):
    rng = random.Random(1)
    world = make_world(max_num_seqs=3, num_blocks=16, token_budget=24)
    execute = world.executor.execute

    def take_a_while(plan):
        world.now += rng.random() / 7
        return execute(plan)

    world.executor.execute = take_a_while
    for number in range(30):
        world.submit(f"r{number}", rng.randrange(1, 60), max_tokens=rng.randrange(20), n=rng.choice([1, 1, 2]))
        world.step(seconds=rng.random() / 3)
    world.run()
    world.assert_all_answered()
