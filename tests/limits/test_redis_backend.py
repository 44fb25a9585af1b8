"""Counts in a real Redis that is killed, stopped, emptied and started again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import redis

from kvarn.config.load import ConfigError
from kvarn.config.platform import LimitsConfig
from kvarn.limits.limiter import ActiveReservation as Active
from kvarn.limits.limiter import Limiter
from kvarn.limits.local import Timing
from kvarn.limits.types import Kind, LimitsAwayError
from kvarn.observe.limits import LimitMetrics
from limit_reservations import make_limit
from limit_reservations import make_reservation as reserve

TIMEOUT_S = 0.3
REQUESTS, TOKENS, CONCURRENCY = Kind.REQUESTS, Kind.TOKENS, Kind.CONCURRENCY


@pytest.fixture
async def limiters() -> AsyncGenerator[Callable[..., Any], None]:
    made: list[Limiter] = []

    async def make(port: int, when_away: str = "open", timing: Timing | None = None) -> Limiter:
        url = f"redis://127.0.0.1:{port}/0"
        config = LimitsConfig.model_validate({"redis_url": url, "timeout_s": TIMEOUT_S, "when_away": when_away})
        limiter = Limiter(config, LimitMetrics(), timing)
        made.append(limiter)
        await limiter.start()
        return limiter

    yield make
    for limiter in made:
        await limiter.stop()


async def back(limiter: Limiter) -> None:
    async with asyncio.timeout(60):
        while limiter.away:  # noqa: ASYNC110  it is another task that finds out
            await asyncio.sleep(0.01)


async def used(limiter: Limiter, of: Any) -> int:
    """What a limit has counted, as a reservation that is never admitted is told."""
    refused = await limiter.take(reserve(of, tokens=of.maximum + 1))
    assert not isinstance(refused, Active)
    return refused.usages[0].used


async def test_two_gateways_share_their_counts(own_redis: Any, limiters: Any) -> None:
    first, second = await limiters(own_redis.port), await limiters(own_redis.port)
    tpm, places = make_limit(TOKENS, 100), make_limit(CONCURRENCY, 1)
    hold = await first.take(reserve(tpm, places, tokens=80))
    refused = await second.take(reserve(tpm, places, tokens=30))
    assert isinstance(hold, Active) and not isinstance(refused, Active)
    assert [reading.used for reading in refused.usages] == [80, 1]
    hold.settle(60)
    assert isinstance(await first.take(reserve(tpm, places, tokens=1)), Active), "settled before what came after"
    assert await used(second, tpm) == 61


async def test_a_redis_that_lost_its_scripts_is_given_them_again(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(own_redis.port), make_limit(TOKENS, 1000)
    with redis.Redis(port=own_redis.port) as client:
        client.script_flush()
    holds = await asyncio.gather(*[limiter.take(reserve(tpm, tokens=10)) for _ in range(20)])
    assert all(isinstance(hold, Active) for hold in holds) and not limiter.away
    assert await used(limiter, tpm) == 200


async def test_open_counts_in_the_process_while_redis_is_away_and_shares_again_when_it_is_back(
    own_redis: Any, limiters: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvarn.limits")
    limiter, tpm = await limiters(own_redis.port), make_limit(TOKENS, 100)
    assert isinstance(await limiter.take(reserve(tpm, tokens=100)), Active)
    own_redis.kill()
    hold = await limiter.take(reserve(tpm, tokens=100))
    assert isinstance(hold, Active) and limiter.away
    for _ in range(20):
        assert not isinstance(await limiter.take(reserve(tpm, tokens=1)), Active), "the process counts meanwhile"
    assert sum("Redis is away" in record.message for record in caplog.records) == 1, "said once"
    own_redis.start()
    await back(limiter)
    assert isinstance(await limiter.take(reserve(tpm, tokens=100)), Active), "a new Redis has counted nothing yet"
    assert sum("Redis is back" in record.message for record in caplog.records) == 1


async def test_closed_refuses_while_redis_is_away(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(own_redis.port, "closed"), make_limit(TOKENS, 100)
    own_redis.kill()
    for _ in range(3):
        with pytest.raises(LimitsAwayError):
            await limiter.take(reserve(tpm))
    own_redis.start()
    await back(limiter)
    assert isinstance(await limiter.take(reserve(tpm)), Active)


async def test_a_gateway_starts_without_redis_and_finds_it_later(own_redis: Any, limiters: Any) -> None:
    own_redis.kill()
    limiter = await limiters(own_redis.port)
    assert limiter.away and isinstance(await limiter.take(reserve(make_limit(TOKENS, 100))), Active)
    own_redis.start()
    await back(limiter)


async def test_nobody_waits_longer_than_the_timeout_for_a_redis_that_hangs(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(own_redis.port), make_limit(TOKENS, 1000)
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        async with asyncio.timeout(20 * TIMEOUT_S):
            first = [asyncio.create_task(limiter.take(reserve(tpm, tokens=10))) for _ in range(50)]
            await asyncio.sleep(TIMEOUT_S / 2)
            second = [asyncio.create_task(limiter.take(reserve(tpm, tokens=10))) for _ in range(50)]
            assert all(isinstance(hold, Active) for hold in await asyncio.gather(*first, *second))
        assert time.monotonic() - began < 10 * TIMEOUT_S
    finally:
        os.kill(own_redis.process.pid, signal.SIGCONT)


async def test_orders_a_hanging_redis_took_after_all_are_given_back(own_redis: Any, limiters: Any) -> None:
    limiter, tpm, places = await limiters(own_redis.port), make_limit(TOKENS, 1000), make_limit(CONCURRENCY, 100)
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    await asyncio.gather(*[limiter.take(reserve(tpm, places, tokens=10)) for _ in range(20)])
    os.kill(own_redis.process.pid, signal.SIGCONT)
    await back(limiter)
    assert await used(limiter, tpm) == 0
    again = await limiter.take(reserve(places))
    assert isinstance(again, Active) and again.decision.usages[0].used == 1


async def test_a_settlement_that_could_not_be_sent_is_sent_when_redis_is_back(own_redis: Any, limiters: Any) -> None:
    limiter, tpm, rpm = await limiters(own_redis.port), make_limit(TOKENS, 1000), make_limit(REQUESTS, 10)
    used_some, lost = (
        await limiter.take(reserve(tpm, rpm, tokens=500)),
        await limiter.take(reserve(tpm, rpm, tokens=300)),
    )
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    await limiter.take(reserve(tpm))
    assert limiter.away
    used_some.settle(200)
    lost.settle(0, whole=True)
    os.kill(own_redis.process.pid, signal.SIGCONT)
    await back(limiter)
    assert await used(limiter, tpm) == 200
    assert (await limiter.take(reserve(rpm))).decision.usages[0].used == 2


async def test_a_caller_that_gives_up_waiting_holds_nothing(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(own_redis.port), make_limit(TOKENS, 1000)
    waiting = [asyncio.create_task(limiter.take(reserve(tpm, tokens=10))) for _ in range(20)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await used(limiter, tpm) == 100


async def test_the_places_of_a_killed_gateway_run_out_and_those_of_a_living_one_do_not(
    own_redis: Any, limiters: Any
) -> None:
    timing = Timing(lease_ms=2000)
    killed, living = [await limiters(own_redis.port, timing=timing) for _ in range(2)]
    places = make_limit(CONCURRENCY, 2)
    assert isinstance(await killed.take(reserve(places)), Active) and isinstance(
        await living.take(reserve(places)), Active
    )
    await killed.stop()
    assert not isinstance(await living.take(reserve(places)), Active)
    async with asyncio.timeout(60):
        while not isinstance(await living.take(reserve(places)), Active):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert not isinstance(await living.take(reserve(places)), Active), "its first request still holds its place"


async def test_what_runs_has_its_place_again_in_a_redis_that_forgot_everything(own_redis: Any, limiters: Any) -> None:
    limiter, places = await limiters(own_redis.port, timing=Timing(lease_ms=900)), make_limit(CONCURRENCY, 1)
    hold = await limiter.take(reserve(places))
    with redis.Redis(port=own_redis.port) as client:
        client.flushall()
    await asyncio.sleep(0.5)
    assert not isinstance(await limiter.take(reserve(places)), Active)
    hold.settle(0)
    assert isinstance(await limiter.take(reserve(places)), Active)


async def test_long_answers_are_charged_while_they_are_written(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(own_redis.port, timing=Timing(lease_ms=600)), make_limit(TOKENS, 1000)
    await limiter.take(reserve(tpm, tokens=10), used=lambda: 700)
    await asyncio.sleep(0.4)
    assert await used(limiter, tpm) == 700


async def test_nothing_is_left_in_redis_for_ever(own_redis: Any, limiters: Any) -> None:
    limiter = await limiters(own_redis.port)
    bounds = [make_limit(kind, 100) for kind in Kind]
    settled = await limiter.take(reserve(*bounds, tokens=10))
    await limiter.take(reserve(*bounds, tokens=10))
    settled.settle(5)
    await used(limiter, bounds[1])
    with redis.Redis(port=own_redis.port) as client:
        keys = list(client.scan_iter())
        assert len(keys) == 4 and all(0 < client.pttl(key) <= 61_000 for key in keys)


async def test_a_url_that_cannot_be_used_is_told_at_the_start() -> None:
    config = LimitsConfig(redis_url="redis://localhost:no-port/0")
    with pytest.raises(ConfigError, match=r"limits\.redis_url"):
        Limiter(config, LimitMetrics())


async def test_redis_is_asked_again_whatever_went_wrong_the_last_time(
    own_redis: Any, limiters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = await limiters(own_redis.port)
    shared, tries = limiter.redis, []
    real = shared._run_probes

    async def try_all() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ZeroDivisionError("a fault nobody foresaw")
        await real()

    monkeypatch.setattr(shared, "_run_probes", try_all)
    own_redis.kill()
    await limiter.take(reserve(make_limit(TOKENS, 100)))
    assert limiter.away
    own_redis.start()
    await back(limiter)
    assert len(tries) >= 3
