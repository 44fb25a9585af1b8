from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.engine.memory.block_pool import BlockPool
from kvarn.engine.memory.prefix_cache import PrefixCache, PrefixNode
from kvarn.wire.block_names import PrefixScope, block_hashes, root_hash
from profiles import examples

PLAIN = PrefixScope()


def store(cache: PrefixCache, pool: BlockPool, tokens: list[int], scope: PrefixScope = PLAIN) -> list[int]:
    """Compute, name and release a sequence's full blocks, as the engine does. Returns the path's blocks."""
    nodes = cache.match(tokens, scope, len(tokens))
    for node in nodes:
        pool.acquire(node.block)
    for start in range(16 * len(nodes), len(tokens) - 15, 16):
        node = cache.insert(scope, nodes[-1] if nodes else None, tuple(tokens[start : start + 16]), pool.allocate())
        nodes.append(node)
    blocks = [node.block for node in nodes]
    pool.release_all(reversed(blocks))
    return blocks


def held(nodes: list[PrefixNode]) -> list[int]:
    return [node.block for node in nodes]


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(32)


@pytest.fixture
def cache(pool: BlockPool) -> PrefixCache:
    return PrefixCache(pool)


def test_the_longest_common_prefix_in_whole_blocks_is_found(cache, pool):
    blocks = store(cache, pool, list(range(64)))
    assert held(cache.match(list(range(64)), PLAIN, 63)) == blocks[:3]
    assert held(cache.match([*range(40), 99, 99], PLAIN, 41)) == blocks[:2]
    assert held(cache.match([99, *range(63)], PLAIN, 63)) == []


def test_sequences_that_part_share_the_blocks_before(cache, pool):
    first = store(cache, pool, [*range(32), *[1] * 16])
    second = store(cache, pool, [*range(32), *[2] * 16])
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert len(cache) == 4


@pytest.mark.parametrize(
    "other",
    [
        PrefixScope("tenant"),
        PrefixScope(salt="salt"),
        PrefixScope(adapter="adapter"),
        PrefixScope("", "salt", "adapter"),
    ],
)
def test_another_salt_or_adapter_never_matches(cache, pool, other):
    tokens = list(range(48))
    store(cache, pool, tokens)
    assert cache.match(tokens, other, 48) == []
    store(cache, pool, tokens, other)
    mine, theirs = cache.match(tokens, PLAIN, 48), cache.match(tokens, other, 48)
    assert not set(held(mine)) & set(held(theirs))
    assert not {node.hash for node in mine} & {node.hash for node in theirs}


def test_a_salt_cannot_imitate_another_salt_with_an_adapter():
    assert root_hash(PrefixScope("", "ab", "c")) != root_hash(PrefixScope("", "a", "bc"))
    assert root_hash(PrefixScope("ab", "c")) != root_hash(PrefixScope("a", "bc"))
    assert root_hash(PrefixScope("a"), "b") != root_hash(PrefixScope("b"), "a")


def test_hashes_are_chained_and_the_same_in_every_process(cache, pool):
    tokens = list(range(48))
    store(cache, pool, tokens)
    names = [node.hash for node in cache.match(tokens, PLAIN, 48)]
    assert names == block_hashes(tokens, PLAIN)
    assert names[0].hex() == "3a5da99a6a182acb0f45bcf6ba7a93f8"
    assert block_hashes([7, *tokens[1:]], PLAIN)[2] != names[2]


def test_what_was_released_longest_ago_is_evicted_first_and_leaves_before_their_parents(cache, pool):
    old, young = list(range(48)), list(range(100, 148))
    store(cache, pool, old)
    store(cache, pool, young)
    store(cache, pool, old[:16])
    for left in (2, 1):
        assert pool.evict()
        assert len(cache.match(old, PLAIN, 48)) == left
        assert len(cache.match(young, PLAIN, 48)) == 3
        cache.check_integrity()
    for left in (2, 1, 0):
        assert pool.evict()
        assert len(cache.match(young, PLAIN, 48)) == left
    assert pool.evict()
    assert not pool.evict()
    assert cache.evictions == 6
    assert pool.num_free == 32


def test_a_path_that_a_sequence_holds_is_not_evicted(cache, pool):
    tokens = list(range(48))
    store(cache, pool, tokens)
    blocks = held(cache.match(tokens, PLAIN, 32))
    for block in blocks:
        pool.acquire(block)
    assert pool.evict()
    assert not pool.evict()
    pool.release_all(reversed(blocks))
    assert pool.evict()


class NaiveCache:
    """Every cached prefix as a list of tokens; eviction searches for the leaf released longest ago."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.prefixes: dict[tuple[int, ...], int] = {}
        self.clock = 0

    def match(self, tokens: list[int]) -> int:
        best = 0
        while len(tokens) >= best + 16 and tuple(tokens[: best + 16]) in self.prefixes:
            best += 16
        return best

    def store(self, tokens: list[int]) -> None:
        full = [tuple(tokens[:end]) for end in range(16, len(tokens) + 1, 16)]
        held = set(full)
        for prefix in full:
            if prefix not in self.prefixes:
                if len(self.prefixes) == self.capacity:
                    leaves = [p for p in self.prefixes if p not in held and not self._has_child(p)]
                    del self.prefixes[min(leaves, key=self.prefixes.__getitem__)]
                self.prefixes[prefix] = 0
        for prefix in reversed(full):
            self.clock += 1
            self.prefixes[prefix] = self.clock

    def _has_child(self, prefix: tuple[int, ...]) -> bool:
        return any(len(p) > len(prefix) and p[: len(prefix)] == prefix for p in self.prefixes)


@settings(max_examples=examples(150), derandomize=True)
@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=30))
def test_hits_and_evictions_are_those_of_a_naive_cache(paths):
    pool = BlockPool(6)
    cache, naive = PrefixCache(pool), NaiveCache(6)
    for path in paths:
        tokens = [kind for kind in path for _ in range(16)]
        assert 16 * len(cache.match(tokens, PLAIN, len(tokens))) == naive.match(tokens)
        store(cache, pool, tokens)
        naive.store(tokens)
        cache.check_integrity()
        pool.check_integrity({})
