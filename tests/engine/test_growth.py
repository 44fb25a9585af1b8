from __future__ import annotations

import pytest

from kvarn.engine.growth import GrowthReserve


def test_the_reserve_rises_with_preemptions_and_falls_without():
    reserve = GrowthReserve()
    reserve.observe(preempted=True)
    assert reserve.share == pytest.approx(GrowthReserve.START + GrowthReserve.RISE)
    for _ in range(5000):
        reserve.observe(preempted=False)
    assert reserve.share == GrowthReserve.LEAST
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
    for index in range(60):
        world.assert_answered(f"r{index}")


def test_memory_kept_for_growth_never_keeps_a_lone_request_out(make_world):
    world = make_world(num_blocks=10)
    for index in range(3):
        world.submit(f"r{index}", 16, max_tokens=144)
    world.run()
    for index in range(3):
        world.assert_answered(f"r{index}")


def test_answers_without_a_limit_do_not_keep_the_others_out(make_world):
    """A chat request without `max_tokens` may fill the context; a hundred of these share a cache of one context."""
    world = make_world(num_blocks=2048, max_context_length=32_768, recount_every=100)
    for index in range(100):
        world.submit(f"r{index}", 100, max_tokens=32_000)
    for _ in range(10):
        world.step()
    assert len(world.engine.scheduler.running) >= 90
