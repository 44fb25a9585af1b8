"""What the engine asks of the tiers beyond its cache: when it stores, loads, waits and gives up."""

from __future__ import annotations

import pytest

from engine_world import World
from kv_connectors import DictConnector
from kvarn.costs.step_times import StepTimes
from kvarn.engine.plan import StepPlan
from kvarn.engine.step_time import StepTimeModel

PROMPT = [i * i % 50 for i in range(100)]


def seconds(plan: StepPlan) -> float:
    return 0.001 + 0.001 * plan.num_tokens


def step_time() -> StepTimeModel:
    """Knows how long steps take: `seconds`."""
    return StepTimeModel.knowing(StepTimes(fixed_s=0.001, prefill_token_s=0.001, decode_row_s=0.001))


def tiered(connector: DictConnector, **config: object) -> World:
    return World(connector=connector, seconds=seconds, step_time=step_time(), **{"num_blocks": 20, **config})


def ask(world: World, name: str, prompt: list[int] = PROMPT, **fields: object) -> None:
    world.submit(name, prompt, max_tokens=4, **fields)
    world.run()
    world.assert_answered(name)


def num_prompt_tokens(world: World) -> int:
    return world.engine.stats().prompt_tokens_total


def test_computed_blocks_are_stored_as_soon_as_they_are_full_the_last_ones_too() -> None:
    connector = DictConnector()
    world = tiered(connector)
    ask(world, "a")
    assert len(connector.blocks) == 103 // 16
    assert not world.engine.has_work()


def test_a_prompt_begins_with_what_another_engine_stored() -> None:
    connector = DictConnector()
    ask(tiered(connector), "a")
    world = tiered(connector)
    ask(world, "b")
    assert world.cached_tokens("b") == 96
    assert num_prompt_tokens(world) == 4
    stats = world.engine.stats()
    assert (stats.lookups.queries_total, stats.lookups.hits_total) == (100, 96)
    assert stats.kv_tiers["dictionary"].blocks == len(connector.blocks)


def test_what_the_prefix_cache_holds_is_not_loaded() -> None:
    connector = DictConnector()
    world = tiered(connector)
    ask(world, "a")
    ask(world, "b")
    assert connector.num_loaded == 0
    assert world.engine.stats().lookups.queries_total == 100 + 4


@pytest.mark.parametrize("scope", [{"tenant": "other"}, {"cache_salt": "other"}, {"adapter": "other"}])
def test_another_tenant_salt_or_adapter_finds_nothing(scope: dict[str, str]) -> None:
    connector = DictConnector()
    ask(tiered(connector), "a")
    world = tiered(connector)
    ask(world, "b", **scope)
    assert connector.num_loaded == 0


def test_loaded_blocks_are_shared_through_the_prefix_cache_and_not_stored_again() -> None:
    connector = DictConnector()
    ask(tiered(connector), "a")
    world = tiered(connector)
    ask(world, "b")
    ask(world, "c")
    assert connector.num_loaded == 6
    assert [transfer for plan in world.executor.plans for transfer in plan.kv_stores] == []


def test_blocks_that_are_far_are_fetched_while_the_sequence_waits_and_others_pass() -> None:
    connector = DictConnector(far=True)
    ask(tiered(connector), "a")
    connector.near.clear()
    world = tiered(connector)
    world.submit("far", PROMPT, max_tokens=4)
    world.submit("new", 20, max_tokens=4)
    world.step()
    assert [row.slot for row in world.executor.plans[-1].rows] == [0]
    assert len(world.executor.plans[-1].rows[0].token_ids) == 20, "the other one runs"
    world.run()
    world.assert_all_answered()
    assert world.cached_tokens("far") == 96
    assert connector.fetches[-1].released


def test_a_fetch_is_given_up_when_computing_would_have_been_done() -> None:
    connector = DictConnector(far=True)
    ask(tiered(connector), "a")
    connector.near.clear()
    world = tiered(connector)
    connector.stuck = True
    world.submit("far", PROMPT, max_tokens=4)
    began = world.now
    while not world.deltas["far"]:
        world.step(0.001)
    assert 0.05 < world.now - began < 0.2, "computing 96 tokens takes 96 ms"
    world.run()
    world.assert_answered("far")
    assert world.cached_tokens("far") == 0
    assert world.engine.stats().lookups.given_up_total == 1
    assert connector.fetches[-1].released


def test_what_takes_longer_to_fetch_than_to_compute_is_computed() -> None:
    connector = DictConnector(far=True)
    ask(tiered(connector), "a")
    connector.near.clear()
    connector.fetch_block_s = 0.05
    world = tiered(connector)
    ask(world, "far")
    assert not connector.fetches
    assert world.cached_tokens("far") == 0


def test_an_aborted_request_ends_its_fetch() -> None:
    connector = DictConnector(far=True)
    ask(tiered(connector), "a")
    connector.near.clear()
    connector.stuck = True
    world = tiered(connector)
    world.submit("far", PROMPT, max_tokens=4)
    world.engine.abort("far")
    assert connector.fetches[-1].released
    assert not world.engine.has_work()


def test_a_fetch_without_room_is_tried_again_and_holds_nobody_up() -> None:
    connector = DictConnector(far=True)
    ask(tiered(connector), "a")
    connector.near.clear()
    connector.full = True
    world = tiered(connector, max_num_seqs=1)
    world.submit("running", 20, max_tokens=30)
    world.submit("far", PROMPT, max_tokens=4)
    for _ in range(3):
        world.step()
    assert not connector.fetches
    connector.full = False
    world.run()
    assert len(connector.fetches) == 1
    assert world.cached_tokens("far") == 96


def test_a_block_that_is_gone_when_it_is_wanted_is_computed() -> None:
    connector = DictConnector()
    ask(tiered(connector), "a")
    connector.losses = 3
    world = tiered(connector)
    ask(world, "b")
    assert world.cached_tokens("b") == 32
    assert num_prompt_tokens(world) == 68


def test_a_deleted_tenants_blocks_leave_the_prefix_cache_and_the_tiers() -> None:
    connector = DictConnector()
    world = tiered(connector)
    ask(world, "a", tenant="acme")
    ask(world, "b", tenant="other")
    world.engine.forget_tenant("acme")
    world.engine.check_integrity()
    assert connector.forgotten == ["acme"]
    assert world.engine.stats().kv_blocks_cached == 103 // 16
    connector.blocks.clear()
    ask(world, "c", tenant="acme")
    assert world.cached_tokens("c") == 0
    ask(world, "d", tenant="other")
    assert world.cached_tokens("d") == 96


def test_forgetting_a_tenant_leaves_what_its_running_requests_hold() -> None:
    world = tiered(DictConnector())
    world.submit("a", PROMPT, max_tokens=20, tenant="acme")
    for _ in range(5):
        world.step()
    world.engine.forget_tenant("acme")
    world.run()
    world.assert_answered("a")
