"""Names of blocks that are told, against what is held."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from block_watcher import names_in
from engine_world import World
from kvarn.engine.memory.block_inventory import BlockInventory, packed

REQUESTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 90), st.integers(1, 40), st.integers(0, 6)),
    min_size=1,
    max_size=12,
)
"""Tenant, what its prompt begins with, the prompt's length, the answer's, and steps before the next request."""


@given(requests=REQUESTS, forget=st.integers(0, 12), take_every=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_changes_add_up_to_what_is_cached(
    requests: list[tuple[int, int, int, int, int]], forget: int, take_every: int
) -> None:
    world = World(num_blocks=24)
    cache = world.engine.cache
    world.submit("early", 60)
    world.run()
    held = BlockInventory()
    cache.report_to(held)
    view = names_in(held.snapshot()[2])

    def compare() -> None:
        stored, removed = map(names_in, held.take())
        assert not stored & removed and not stored & view and removed <= view
        view.difference_update(removed)
        view.update(stored)
        assert view == names_in(packed(cache.names())) and len(view) == len(cache)

    for number, (tenant, kind, length, answer, steps) in enumerate(requests):
        prompt = [kind] * (length // 2) + [number % 40] * (length - length // 2)
        world.submit(f"r{number}", prompt, tenant=str(tenant), max_tokens=answer)
        for step in range(steps):
            world.step()
            if step % take_every == 0:
                compare()
        if number == forget:
            world.engine.forget_tenant(str(tenant))
            compare()
    world.run()
    compare()


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=60)
"""A place, a block that comes to it or goes, and whether it is told then."""


@given(steps=STEPS)
def test_a_block_is_held_as_long_as_one_place_has_it(steps: list[tuple[int, int, bool]]) -> None:
    held, places = BlockInventory(), [set[bytes]() for _ in range(3)]
    view = set[bytes]()
    for place, block, tell in steps:
        name = bytes([block]) * 16
        if name in places[place]:
            places[place].remove(name)
            held.drop(name)
        else:
            places[place].add(name)
            held.add(name)
        everywhere = {each[:8] for each in set.union(*places)}
        if tell:
            stored, removed, whole = map(names_in, held.snapshot())
            assert not stored & removed and not stored & view and removed <= view
            view = (view | stored) - removed
            assert view == whole == everywhere and not held
        assert len(held) == len(everywhere)
