"""Statistics and names of blocks of steps that are not taken yet are those that the engine gives once they are."""

from __future__ import annotations

import gc
import random

import msgspec
import pytest

from block_watcher import names_in
from forwarded_engine import Engine, submit
from kvarn.engine.fast_forward import decode_run
from kvarn.engine.memory.block_inventory import packed
from kvarn.engine.request import Sequence
from kvarn.wire.block_names import NamedPrompt, PrefixScope, root_hash
from kvarn.wire.messages import Submit


def named(number: int, segments: list[tuple[int, int]], output: int, answer_key: int, tenant: str = "x") -> Submit:
    prompt = NamedPrompt.of(root_hash(PrefixScope(tenant)), segments, (answer_key, output))
    return submit(number, prompt_token_ids=prompt, max_tokens=output, tenant=tenant)


def measured(**settings: object) -> Engine:
    """An engine whose step times are told, for it has run some."""
    engine = Engine(num_blocks=400, **settings)
    engine.add(named(99, [(2, 40)], 60, answer_key=6))
    while engine.core.has_work():
        engine.step()
    return engine


def compare_run(engine: Engine, chance: random.Random) -> tuple[int, int]:
    """Play a run of the engine in parts, or a step; how often statistics were told ahead, and how often not."""
    run, told, untold = decode_run(engine.core), 0, 0
    if run is None:
        engine.step()
    while run is not None and run.is_current:
        end = chance.randint(run.taken + 1, len(run.steps))
        looks = [run.stats_at(chance.randint(run.taken + 1, end)) is None, run.stats_at(end) is None]
        ahead, names = run.stats_at(end), run.names_at(end)
        engine.told.take()
        cached = set(engine.core.cache.names())
        if names is not None:
            engine.told.announce(run.names_at(chance.randint(run.taken + 1, end)) or [])
            engine.told.announce(names)
            assert names_in(engine.told.take()[0]) == names_in(packed(names))
        run.take(due_s=run.steps.ends_s[end - 1])
        assert run.taken == end
        if names is not None:
            assert not engine.told, "what was announced is not told again"
            assert {*names} == {*engine.core.cache.names()} - cached
        assert ahead is None or names is not None
        if ahead is None:
            untold += 1
        else:
            assert msgspec.structs.asdict(ahead) == msgspec.structs.asdict(engine.core.stats())
            assert not any(looks)
            told += 1
    return told, untold


@pytest.mark.parametrize("num_blocks", [40, 400])
def test_statistics_ahead_are_those_of_the_steps_once_they_are_taken(num_blocks: int) -> None:
    told = untold = 0
    for seed in range(12):
        chance = random.Random(seed)
        engine = Engine(num_blocks=num_blocks, overhead=None)
        for number in range(10):
            own = (100 + number, chance.randint(1, 60))
            segments = [(1, 40), own] if chance.random() < 0.5 else [own]
            answer_key = number if chance.random() < 0.7 else 0
            engine.add(named(number, segments, chance.randint(2, 90), answer_key, chance.choice("xy")))
            for _ in range(chance.randint(0, 6)):
                if engine.core.has_work():
                    ahead = compare_run(engine, chance)
                    told, untold = told + ahead[0], untold + ahead[1]
        while engine.core.has_work():
            ahead = compare_run(engine, chance)
            told, untold = told + ahead[0], untold + ahead[1]
        engine.core.check_integrity()
    assert told > 100
    assert num_blocks > 100 or untold, "blocks are evicted"


def test_statistics_are_not_told_ahead_where_an_answer_may_share_blocks_that_are_still_to_come() -> None:
    engine = measured()
    for number in range(2):
        engine.add(named(number, [(1, 40)], 60, answer_key=5))
    while (run := decode_run(engine.core)) is None:
        engine.step()
    assert run.stats_at(1) is not None, "no block is full"
    assert run.stats_at(len(run.steps)) is None


def test_statistics_are_not_told_ahead_of_steps_whose_times_are_learned() -> None:
    engine = measured(learns=True)
    engine.add(named(0, [(1, 40)], 60, answer_key=5))
    engine.step()
    run = decode_run(engine.core)
    assert run is not None
    assert run.stats_at(5) is None


def test_a_request_that_is_over_is_gone_without_the_garbage_collector() -> None:
    engine = measured()
    gc.collect()
    others = [each for each in gc.get_objects() if isinstance(each, Sequence)]  # of engines of other tests
    gc.disable()
    try:
        engine.add(named(0, [(1, 40)], 60, answer_key=5))
        while engine.core.has_work():
            engine.step()
        left = [each for each in gc.get_objects() if isinstance(each, Sequence)]
        assert not [each for each in left if not any(each is other for other in others)]
    finally:
        gc.enable()
