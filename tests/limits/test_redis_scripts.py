"""One connection to a real Redis for many callers: none of them hangs, and none of them spoils it for the others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import redis

from kvarn.limits.redis_scripts import RedisScripts, _until
from kvarn.limits.scripts import Call, Script
from kvarn.limits.types import LimitsAwayError
from kvarn.observe.limits import LimitMetrics

TIMEOUT_S = 0.5
ECHO = Script("echo", "redis.call('SET', KEYS[1], ARGV[1]) return ARGV[1]")
COUNT = Script("count", "return redis.call('INCR', KEYS[1])")


def echo(text: bytes) -> Call:
    return Call(ECHO, ["kvarn:limits:echo"], text)


@pytest.fixture
async def connect(own_redis: Any) -> AsyncGenerator[Callable[..., Any], None]:
    made: list[RedisScripts] = []

    async def make(timeout_s: float = TIMEOUT_S) -> RedisScripts:
        scripts = RedisScripts(f"redis://127.0.0.1:{own_redis.port}/0", timeout_s, 30, LimitMetrics())
        scripts.probes.append(echo(b"probe"))
        made.append(scripts)
        await scripts.start()
        return scripts

    yield make
    for scripts in made:
        await scripts.stop()


async def back(scripts: RedisScripts) -> None:
    async with asyncio.timeout(60):
        while scripts.away:  # noqa: ASYNC110  it is another task that finds out
            await asyncio.sleep(0.01)


async def test_a_time_out_leaves_no_cancellation_behind_whatever_came_of_the_work() -> None:
    async def breaks() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    task = asyncio.current_task()
    assert task is not None
    for work, error in ((breaks(), ConnectionError), (asyncio.sleep(10), TimeoutError)):
        with pytest.raises(error):
            await _until(time.monotonic() + 0.01, work)
        assert task.cancelling() == 0


async def test_nobody_waits_behind_what_nobody_waits_for(connect: Any) -> None:
    scripts = await connect(timeout_s=20)
    for _ in range(3000):
        scripts.send(Call(COUNT, ["kvarn:limits:count"], b""))
    assert await scripts.ask(echo(b"x")) == b"x"
    assert len(scripts._owed) > 2000


async def test_what_nobody_waits_for_goes_before_what_is_asked_after_it(connect: Any) -> None:
    scripts = await connect()
    scripts.send(Call(COUNT, ["kvarn:limits:count"], b""))
    assert await scripts.ask(Call(COUNT, ["kvarn:limits:count"], b"")) == 2


async def test_what_nobody_waits_for_may_have_waited_longer_than_a_call_may_take(connect: Any, own_redis: Any) -> None:
    scripts = await connect(timeout_s=5)
    call = echo(b"late")
    call.called -= 10
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    scripts.send(call)
    await asyncio.sleep(0.3)
    os.kill(own_redis.process.pid, signal.SIGCONT)
    assert await scripts.ask(echo(b"x")) == b"x"
    assert not scripts.away and not scripts._owed


async def test_a_call_that_redis_refuses_is_given_up_alone(
    connect: Any, own_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = await connect()
    with redis.Redis(port=own_redis.port) as client:
        client.lpush("kvarn:limits:poisoned", "a list")
    poisoned = Call(COUNT, ["kvarn:limits:poisoned"], b"")
    scripts.send(poisoned)
    assert await scripts.ask(echo(b"x")) == b"x"
    with pytest.raises(LimitsAwayError, match="WRONGTYPE"):
        await scripts.ask(Call(COUNT, ["kvarn:limits:poisoned"], b""))
    assert not scripts.away and not scripts._owed
    assert sum("refuses 1 of" in record.message for record in caplog.records) == 2


async def test_what_a_redis_refuses_that_takes_no_writes_is_kept(connect: Any, own_redis: Any) -> None:
    scripts = await connect()
    with redis.Redis(port=own_redis.port) as client:
        client.config_set("min-replicas-to-write", 1)
        scripts.send(Call(COUNT, ["kvarn:limits:count"], b""))
        async with asyncio.timeout(60):
            while not scripts.away:  # noqa: ASYNC110  it is another task that finds out
                await asyncio.sleep(0.01)
        client.config_set("min-replicas-to-write", 0)
    await back(scripts)
    assert await scripts.ask(Call(COUNT, ["kvarn:limits:count"], b"")) == 2


async def test_what_was_kept_too_long_is_given_up_though_redis_was_back_meanwhile(connect: Any, own_redis: Any) -> None:
    scripts = await connect()
    own_redis.kill()
    with pytest.raises(LimitsAwayError):
        await scripts.ask(echo(b"x"))
    call = Call(COUNT, ["kvarn:limits:count"], b"")
    scripts.send(call)
    called = call.called
    own_redis.start()
    await back(scripts)
    assert call.called == called
    call.called -= 60
    own_redis.kill()
    with pytest.raises(LimitsAwayError):
        await scripts.ask(echo(b"x"))
    scripts.send(call)
    own_redis.start()
    await back(scripts)
    assert await scripts.ask(Call(COUNT, ["kvarn:limits:count"], b"")) == 1, "in a Redis that came back empty"


async def test_what_has_been_stopped_connects_no_more(connect: Any, own_redis: Any) -> None:
    scripts = await connect()
    await scripts.stop()
    scripts.send(echo(b"x"))
    with pytest.raises(LimitsAwayError):
        await scripts.ask(echo(b"x"))
    await asyncio.sleep(0.02)
    with redis.Redis(port=own_redis.port) as client:
        assert len(client.client_list()) == 1
