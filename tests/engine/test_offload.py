"""Preemption that stores blocks beyond the device, and goes on from them."""

from __future__ import annotations

from kv_connectors import DictConnector


class Forgetful(DictConnector):
    """Holds nothing any more when it is asked."""

    def holds(self, name: bytes) -> bool:
        return False

    def is_loadable(self, name: bytes) -> bool:
        return False


def overfull(make_world, connector: DictConnector, **config):
    """Four sequences that outgrow the cache, to their end."""
    world = make_world(num_blocks=12, prefix_cache=False, connector=connector, **config)
    for index in range(4):
        world.submit(f"r{index}", 30, max_tokens=50)
    world.run()
    assert world.engine.stats().preemptions_total > 0
    world.assert_all_answered()
    return world


def num_computed_tokens(world) -> int:
    return sum(plan.num_tokens for plan in world.executor.plans)


def test_a_preempted_sequence_goes_on_from_its_stored_blocks_and_computes_nothing_twice(make_world):
    connector = DictConnector()
    world = overfull(make_world, connector)
    assert num_computed_tokens(world) == 4 * (30 + 50 - 1)
    resumed = [new for plan in world.executor.plans for new in plan.new_sequences if new.output_token_ids]
    assert len(resumed) == world.engine.stats().preemptions_total
    assert connector.num_loaded == sum(len(plan.kv_loads) for plan in world.executor.plans) > 0


def test_blocks_that_are_not_held_any_more_are_computed_again(make_world):
    world = overfull(make_world, Forgetful())
    assert num_computed_tokens(world) > 4 * (30 + 50 - 1)
    assert not any(plan.kv_loads for plan in world.executor.plans)


def test_blocks_that_the_prefix_cache_still_holds_are_not_loaded(make_world):
    """A better priority takes the slot, not the memory."""
    connector = DictConnector()
    world = make_world(num_blocks=40, max_num_seqs=1, connector=connector, priority_ageing_s=1000.0)
    world.submit("batch", 40, max_tokens=20, priority=10)
    for _ in range(5):
        world.step()
    world.submit("chat", 10, max_tokens=3)
    world.run()
    assert world.engine.stats().preemptions_total == 1
    assert connector.num_loaded == 1, "its last block was not full; the two before are in the prefix cache"
    assert num_computed_tokens(world) == 40 + 19 + 10 + 2
    world.assert_answered("batch")


def test_a_prompt_preempted_half_way_goes_on_from_there(make_world):
    connector = DictConnector()
    world = make_world(num_blocks=8, token_budget=16, prefix_cache=False, connector=connector, priority_ageing_s=1000.0)
    world.submit("batch", 100, max_tokens=5, priority=10)
    for _ in range(3):
        world.step()
    world.submit("chat", 60, max_tokens=5)
    world.run()
    assert world.engine.stats().preemptions_total == 1
    assert num_computed_tokens(world) == 100 + 4 + 60 + 4
    world.assert_all_answered()
