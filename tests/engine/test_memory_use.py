from __future__ import annotations

import random

import pytest

from kvarn.engine.memory.kv_cache_manager import blocks_for


def test_less_than_4_percent_of_the_allocated_kv_is_wasted_on_a_mixed_load(make_world):
    """Chat, summaries and short questions together, mean context about 450 tokens; no two prompts alike."""
    world = make_world(num_blocks=1200, max_num_seqs=48, token_budget=1024, recount_every=50)
    chance, sent, ratios = random.Random(5), 0, []
    for step in range(260):
        while len(world.engine.scheduler.queue) < 4:
            prompt, answer = chance.choice([(900, 20), (300, 150), (150, 250), (40, 120)])
            length = int(prompt * chance.uniform(0.6, 1.4))
            tokens = [chance.randrange(50) for _ in range(length)]
            world.submit(
                f"r{sent}", tokens, max_tokens=int(answer * chance.uniform(0.5, 1.5)), n=chance.choice([1, 1, 2])
            )
            sent += 1
        world.step()
        if step > 60:
            ratios.append(world.engine.stats().kv_waste_ratio)
    assert sum(ratios) / len(ratios) < 0.04
    assert max(ratios) < 0.045


def test_the_waste_is_what_a_count_of_all_slots_says(make_world):
    world = make_world(num_blocks=60)
    world.submit("a", 37, n=3, max_tokens=30)
    world.submit("b", 5, max_tokens=30)
    while world.engine.has_work():
        world.step()
        filled: dict[int, int] = {}
        for sequence in world.engine.scheduler.running:
            for index, block in enumerate(sequence.blocks):
                tokens = min(16, max(0, sequence.num_computed_tokens - 16 * index))
                filled[block] = max(filled.get(block, 0), tokens)
        expected = 1 - sum(filled.values()) / (16 * len(filled)) if filled else 0.0
        assert world.engine.stats().kv_waste_ratio == pytest.approx(expected)


def test_no_sequence_holds_more_blocks_than_its_tokens_need(make_world):
    world = make_world(token_budget=20)
    world.submit("a", 100, n=2, max_tokens=30)
    while world.engine.has_work():
        world.step()
        for sequence in world.engine.scheduler.running:
            assert len(sequence.blocks) == blocks_for(sequence.num_computed_tokens)


def test_stats_tell_where_the_blocks_are(make_world):
    world = make_world(num_blocks=20)
    world.submit("a", 40, max_tokens=3)
    world.step()
    stats = world.engine.stats()
    assert (stats.kv_blocks_total, stats.kv_blocks_free, stats.kv_blocks_cached) == (20, 17, 0)
    assert (stats.running, stats.waiting, stats.batch_tokens, stats.batch_seqs) == (1, 0, 40, 1)
    assert stats.kv_waste_ratio == pytest.approx(8 / 48)
    world.run()
    stats = world.engine.stats()
    assert (stats.kv_blocks_free, stats.kv_blocks_cached, stats.kv_waste_ratio) == (20, 2, 0.0)
    assert (stats.finished_total, stats.output_tokens_total, stats.step) == (1, 3, 3)


def test_stats_tell_who_waits(make_world):
    world = make_world(max_num_seqs=1)
    for name, priority in (("a", 0), ("b", 0), ("c", 10), ("d", 0)):
        world.submit(name, 10, priority=priority)
    world.step()
    assert world.engine.stats().waiting_by_priority == {0: 2, 10: 1}


def test_cached_blocks_make_room_when_others_need_it(make_world):
    world = make_world(num_blocks=10)
    for index in range(6):
        world.submit(f"r{index}", [index * 3 % 50, *range(40)], max_tokens=30)
        world.run()
        world.assert_answered(f"r{index}")
    stats = world.engine.stats()
    assert stats.evictions_total > 0
    assert stats.preemptions_total == 0
