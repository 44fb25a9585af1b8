"""Answers in Redis, shared by gateways."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from kvarn.config.load import ConfigError
from kvarn.response_cache.store import Answer
from kvarn.store.owner import Principal

_MAX_WRITES = 256
"""Writes under way at most; further answers are not kept."""

_log = logging.getLogger("kvarn.response_cache")
_decoder = msgspec.msgpack.Decoder(Answer)


class RedisAnswers:
    """An `AnswerStore` in one Redis, which bounds the memory. While Redis is away, nothing is found.

    Args:
        url: `redis://...`, `rediss://...` or `unix://...`.
        timeout_s: Seconds that a call may take.
        on_fault: Hears of each call that failed.

    Raises:
        ConfigError: The URL cannot be used.
    """

    def __init__(self, url: str, timeout_s: float, on_fault: Callable[[], None]) -> None:
        try:
            self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        except ValueError as error:
            raise ConfigError(f"response_cache.redis_url: {error}") from None
        self._timeout_s = timeout_s
        self._on_fault = on_fault
        self._writes = set[asyncio.Task[None]]()
        self._is_away = False

    async def get(self, principal: Principal, key: bytes) -> Answer | None:
        found = await self._call(self._redis.get(_name(principal, key)))
        if found is None:
            return None
        try:
            return _decoder.decode(found)
        except msgspec.DecodeError:  # of another version
            return None

    def put(self, principal: Principal, key: bytes, answer: Answer, ttl_s: float) -> None:
        if len(self._writes) >= _MAX_WRITES:
            self._on_fault()
            return
        write = asyncio.create_task(self._put(_name(principal, key), msgspec.msgpack.encode(answer), ttl_s))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def sweep(self) -> None:
        """Nothing: Redis drops what has ended."""

    async def close(self) -> None:
        await asyncio.gather(*self._writes)
        await self._redis.aclose()

    async def _put(self, name: str, content: bytes, ttl_s: float) -> None:
        await self._call(self._redis.set(name, content, px=max(1, round(1000 * ttl_s))))

    async def _call(self, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await work
        except (RedisError, TimeoutError, OSError) as error:
            self._on_fault()
            if not self._is_away:
                self._is_away = True
                _log.warning("response_cache.redis_url cannot be used, answers are not cached: %r", error)
            return None
        if self._is_away:
            self._is_away = False
            _log.info("the Redis of response_cache.redis_url is back")
        return answer


def _name(principal: Principal, key: bytes) -> str:
    """The key of an answer in Redis: the project's salt is in it, as a digest."""
    salted = hashlib.blake2b(principal.cache_salt.encode() + b"\0" + key, digest_size=32).hexdigest()
    return f"kvarn:answers:{principal.organization_id}:{principal.project_id}:{salted}"
