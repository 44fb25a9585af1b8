from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.block_pool import BlockPool
from profiles import examples


class Owner:
    """Frees what it is asked to evict."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.evicted: list[int] = []

    def evict(self, block: int) -> None:
        self.evicted.append(block)
        self.pool.uncache(block)


def test_a_cached_block_is_not_writable_even_by_a_single_holder():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.cache(block, Owner(pool))
    assert not pool.is_writable(block)


def test_where_none_is_free_the_block_idle_for_longest_is_evicted_by_its_owner():
    pool = BlockPool(3)
    cache, adapters = Owner(pool), Owner(pool)
    blocks = [pool.allocate() for _ in range(3)]
    for block, owner in zip(blocks, (cache, adapters, cache), strict=True):
        pool.cache(block, owner)
    pool.release_all([blocks[1], blocks[0], blocks[2]])
    assert pool.allocate() == blocks[1]
    assert pool.allocate() == blocks[0]
    assert (cache.evicted, adapters.evicted) == ([blocks[0]], [blocks[1]])


def test_releasing_twice_is_an_integrity_error():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(IntegrityError):
        pool.release(block)


def test_a_lost_reference_is_found():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.check_integrity({block: 1})
    with pytest.raises(IntegrityError, match="counts 1 references, 2 exist"):
        pool.check_integrity({block: 2})


@settings(max_examples=examples(100), derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "acquire", "release", "cache", "evict"]), st.integers(0, 7))))
def test_the_pool_agrees_with_a_naive_one(operations):
    """The naive pool: a list of counts and a list of idle blocks, searched from the front."""
    pool, counts, cached, idle = BlockPool(8), [0] * 8, [False] * 8, []
    owner = Owner(pool)
    for operation, block in operations:
        held = counts[block] > 0
        if operation == "allocate" and any(not counts[b] and not cached[b] for b in range(8)):
            got = pool.allocate()
            assert not counts[got] and not cached[got]
            counts[got] = 1
        elif operation == "acquire" and (held or block in idle):
            pool.acquire(block)
            counts[block] += 1
            idle = [b for b in idle if b != block]
        elif operation == "release" and held:
            pool.release(block)
            counts[block] -= 1
            if not counts[block] and cached[block]:
                idle.append(block)
        elif operation == "cache" and held:
            pool.cache(block, owner)
            cached[block] = True
        elif operation == "evict":
            assert pool.evict() == bool(idle)
            if idle:
                assert owner.evicted[-1] == idle[0]
                cached[idle.pop(0)] = False
        pool.check_integrity({b: count for b, count in enumerate(counts) if count})
        assert pool.num_idle == len(idle)
        assert pool.num_held == sum(1 for count in counts if count)
