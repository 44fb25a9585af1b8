"""Answers in memory and in Redis: found by their project and salt, bounded, gone in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis

from kvarn.config.load import ConfigError
from kvarn.response_cache.memory import MemoryAnswers
from kvarn.response_cache.redis import RedisAnswers
from kvarn.response_cache.store import Answer
from kvarn.store.owner import Owner, Principal

ONE = Principal(Owner("org_1", "proj_1"), cache_salt="salt")
TWO = Principal(Owner("org_1", "proj_2"), cache_salt="salt")
SIZE = 1000 + 256


def answer(size: int = 1000) -> Answer:
    return Answer(b"x" * size, 0.0, 1.5, 10, 5, 0)


class Memory:
    """A store on a clock that the test moves."""

    def __init__(self, project: int = 3 * SIZE, whole: int = 5 * SIZE) -> None:
        self.now, self.size = 0.0, 0.0
        self.store = MemoryAnswers(project, whole, lambda: self.now, self._sized)

    def _sized(self, size: float) -> None:
        self.size = size

    def put(self, principal: Principal, *keys: str, ttl_s: float = 10, size: int = 1000) -> None:
        for key in keys:
            self.store.put(principal, key.encode(), answer(size), ttl_s)

    def found(self, principal: Principal, keys: str) -> str:
        return "".join(key for key in keys if asyncio.run(self.store.get(principal, key.encode())) is not None)


def test_of_a_full_project_the_answer_not_used_for_longest_goes():
    memory = Memory()
    memory.put(ONE, "a", "b", "c")
    assert memory.found(ONE, "a") == "a"
    memory.put(ONE, "d")
    assert memory.found(ONE, "abcd") == "acd" and memory.size == 3 * SIZE


def test_of_a_full_memory_the_project_not_used_for_longest_gives_way():
    memory = Memory()
    memory.put(ONE, "a", "b", "c")
    memory.put(TWO, "a", "b", "c")
    assert memory.found(TWO, "abc") == "abc" and memory.found(ONE, "abc") == "bc" and memory.size == 5 * SIZE


def test_what_is_larger_than_a_project_may_be_is_not_kept_and_the_same_key_counts_once():
    memory = Memory()
    memory.put(ONE, "a", size=10_000)
    assert memory.found(ONE, "a") == "" and memory.size == 0
    memory.put(ONE, "a", "a", "a", "a")
    assert memory.size == SIZE


def test_an_answer_ends_after_its_time_and_is_swept_from_memory():
    memory = Memory()
    memory.put(ONE, "a", ttl_s=5)
    memory.put(ONE, "b", ttl_s=50)
    memory.now = 5
    assert memory.found(ONE, "ab") == "b"
    memory.put(TWO, "c", ttl_s=5)
    memory.now = 60
    asyncio.run(memory.store.sweep())
    assert memory.size == 0


def test_with_another_salt_nothing_is_found_and_the_memory_is_free():
    memory = Memory()
    memory.put(ONE, "a", "b")
    assert memory.found(replace(ONE, cache_salt="salt.1"), "ab") == "" and memory.size == 0
    assert memory.found(ONE, "ab") == ""


def test_gateways_share_answers_in_redis_by_project_and_salt(redis_url):
    async def run() -> None:
        faults: list[int] = []
        first, second = (RedisAnswers(redis_url, 5, lambda: faults.append(1)) for _ in range(2))
        first.put(ONE, b"key", answer(), 60)
        await first.close()
        found = await second.get(ONE, b"key")
        assert found == answer() and not faults
        for principal in (TWO, replace(ONE, cache_salt="salt.1")):
            assert await second.get(principal, b"key") is None
        await second.close()

    asyncio.run(run())
    with redis.Redis.from_url(redis_url) as client:
        (name,) = client.scan_iter("kvarn:answers:org_1:*")
        assert 0 < client.ttl(name) <= 60 and b"salt" not in name


def test_without_redis_nothing_is_found_and_each_failure_is_counted(tmp_path):
    async def run() -> None:
        faults: list[Any] = []
        store = RedisAnswers(f"unix://{tmp_path}/none.sock", 5, lambda: faults.append(1))
        assert await store.get(ONE, b"key") is None
        store.put(ONE, b"key", answer(), 60)
        await store.close()
        assert len(faults) == 2

    asyncio.run(run())
    with pytest.raises(ConfigError, match=r"response_cache\.redis_url"):
        RedisAnswers("redis://[", 1, list)
