from __future__ import annotations

import pytest

from kvarn.engine.memory.pressure import GrowthReserve


def test_the_reserve_rises_with_preemptions_and_falls_without():
    reserve = GrowthReserve()
    reserve.observe(preempted=True)
    assert reserve.share == pytest.approx(GrowthReserve.START + GrowthReserve.RISE)
    for _ in range(5000):
        reserve.observe(preempted=False)
    assert reserve.share == GrowthReserve.MIN
    for _ in range(5000):
        reserve.observe(preempted=True)
    assert reserve.share == 1.0


def test_answers_that_outgrow_the_memory_make_the_engine_admit_more_carefully(make_world):
    world = make_world(num_blocks=60, max_num_seqs=32, prefix_cache=False, recount_every=20)
    for index in range(60):
        world.submit(f"r{index}", 16, max_tokens=160)
    by_third = []
    for _ in range(3):
        before = world.engine.stats().preemptions_total
        finished = world.engine.stats().finished_total
        while world.engine.stats().finished_total < finished + 20:
            world.step()
        by_third.append(world.engine.stats().preemptions_total - before)
    assert by_third[0] > 0
    assert by_third[2] < by_third[0]
    world.assert_all_answered()


def test_answers_without_a_limit_do_not_keep_the_others_out(make_world):
    """A chat request without `max_tokens` may fill the context; a hundred of these share a cache of one context."""
    world = make_world(num_blocks=2048, max_context_length=32_768, recount_every=100)
    for index in range(100):
        world.submit(f"r{index}", 100, max_tokens=32_000)
    for _ in range(10):
        world.step()
    assert len(world.engine.scheduler.running) >= 90


def test_a_waiting_prompt_that_another_has_computed_meanwhile_starts_beside_it(make_world):
    """It did not fit when it was first looked at; since then most of its blocks are held by the one that runs."""
    world = make_world(num_blocks=40)
    shared = [i % 50 for i in range(22 * 16)]
    world.submit("first", [*shared, 1], max_tokens=100)
    world.submit("second", [*shared, 2], max_tokens=4)
    for _ in range(10):
        world.step()
    assert world.cached_tokens("second") == len(shared)
    world.assert_answered("second")
    world.run()
    world.assert_answered("first")


def test_nobody_is_preempted_for_blocks_that_the_better_one_would_hold_itself(make_world):
    """Three blocks are missing. Without the batch request its prompt's twenty are free, but those are shared."""
    world = make_world(num_blocks=40, priority_ageing_s=1000.0)
    shared = [i % 50 for i in range(20 * 16)]
    world.submit("batch", [*shared, *[1] * 20], max_tokens=60, priority=10)
    world.step()
    world.submit("other", 160, max_tokens=60)
    world.step()
    world.submit("chat", [*shared, *[2] * 144], max_tokens=5)
    for _ in range(10):
        world.step()
    assert world.engine.stats().preemptions_total == 0
    world.run()
    world.assert_all_answered()


def test_blocks_that_several_worse_ones_share_count_once_all_of_them_are_gone(make_world):
    world = make_world(num_blocks=40, priority_ageing_s=1000.0)
    world.submit("batch", 480, n=3, max_tokens=60, priority=10)
    for _ in range(3):
        world.step()
    assert len(world.engine.scheduler.running) == 3
    world.submit("chat", 400, max_tokens=5)
    world.step()
    assert len(world.output("chat")) == 1
    world.run()
    world.assert_all_answered()
