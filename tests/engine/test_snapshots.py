"""Models with recurrent states: a prompt begins where a snapshot of the states was taken, and nowhere else.

The executor checks before each row that the slot's states are those of all tokens before it, whatever runs.
"""

from __future__ import annotations

import pytest

COMMON = [(7 * i * i + 3) % 50 for i in range(70)]


def ask(world, request_id: str, prompt: list[int], **fields) -> list[int]:
    """The answer to a prompt that nothing else runs beside."""
    assert world.submit(request_id, prompt, **fields)
    world.run()
    world.assert_answered(request_id)
    return world.output(request_id)


def test_the_same_prompt_again_begins_at_its_last_full_block(make_world):
    world = make_world(num_snapshots=8)
    ask(world, "first", COMMON)
    ask(world, "again", COMMON)
    assert [world.cached_tokens(name) for name in ("first", "again")] == [0, 64]


@pytest.mark.parametrize(("length", "cached"), [(16, 0), (17, 16), (48, 32), (64, 48)])
def test_at_least_the_prompts_last_token_is_computed(make_world, length, cached):
    world = make_world(num_snapshots=8)
    for name in ("first", "again"):
        ask(world, name, COMMON[:length])
    assert world.cached_tokens("again") == cached


def test_the_third_prompt_begins_where_the_first_two_parted(make_world):
    world = make_world(num_snapshots=8)
    for index in range(3):
        ask(world, f"r{index}", [*COMMON[:40], *[index] * 30])
    assert [world.cached_tokens(f"r{index}") for index in range(3)] == [0, 0, 32]


def test_a_conversation_goes_on_behind_its_last_answer(make_world):
    world = make_world(num_snapshots=8)
    answer = ask(world, "turn 1", COMMON[:20], max_tokens=50)
    ask(world, "turn 2", [*COMMON[:20], *answer, 5, 6, 7])
    assert world.cached_tokens("turn 2") == 64  # of 70 tokens the last one drawn was never computed


def test_an_answer_holds_one_snapshot_however_long_it_gets(make_world):
    world = make_world(num_snapshots=3)
    ask(world, "other", [1] * 40)
    ask(world, "long", COMMON[:20], max_tokens=200)
    ask(world, "other again", [1] * 40)
    assert world.cached_tokens("other again") == 32


def test_without_room_for_snapshots_every_prompt_is_computed(make_world):
    world = make_world(num_snapshots=0)
    for name in ("first", "again"):
        ask(world, name, COMMON)
        assert world.cached_tokens(name) == 0


def test_the_snapshot_used_least_recently_is_given_up(make_world):
    world = make_world(num_snapshots=2)
    for name in ("a", "b", "a again", "c", "a a third time", "b again"):
        ask(world, name, [ord(name[0]) % 50] * 33, max_tokens=1)
    cached = [world.cached_tokens(name) for name in ("a again", "a a third time", "b again")]
    assert cached == [32, 32, 0]


def test_snapshots_go_with_the_blocks_at_whose_end_they_were_taken(make_world):
    world = make_world(num_blocks=6, num_snapshots=8)
    ask(world, "first", COMMON[:50])
    ask(world, "other", [1] * 80)
    ask(world, "again", COMMON[:50])
    assert world.cached_tokens("again") == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_compute_what_lies_behind_the_prompts_last_full_block(make_world, prefix_cache):
    world = make_world(num_snapshots=8, prefix_cache=prefix_cache)
    world.submit("r", COMMON, n=3, max_tokens=20)
    world.run()
    world.assert_answered("r")
    computed = sum(plan.num_tokens for plan in world.executor.plans)
    prompts = 70 + 2 * (6 if prefix_cache else 70)
    assert computed == prompts + 3 * 19


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_preempted_sequences_go_on_from_their_last_snapshot(make_world, max_in_flight):
    world = make_world(num_blocks=9, num_snapshots=12, max_in_flight=max_in_flight, token_budget=32)
    for index in range(3):
        world.submit(f"r{index}", [index] * 20, max_tokens=60)
    world.run()
    assert world.engine.stats().preemptions_total > 0
    world.assert_all_answered()
