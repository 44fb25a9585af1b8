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
from kvarn.limits.counts import Timing
from kvarn.limits.limiter import ActiveReservation as Active
from kvarn.limits.limiter import Limiter
from kvarn.limits.redis_counts import RedisCounts, _until
from kvarn.limits.types import Kind, LimitsAwayError, Reservation, Update
from kvarn.observe.limits import LimitMetrics
from limit_reservations import make_budget_limit, make_limit
from limit_reservations import make_reservation as reserve

TIMEOUT_S = 0.3
REQUESTS, TOKENS, CONCURRENCY = Kind.REQUESTS, Kind.TOKENS, Kind.CONCURRENCY


def url_of(service: Any) -> str:
    return f"redis://127.0.0.1:{service.port}/0"


@pytest.fixture
async def limiters(own_redis: Any) -> AsyncGenerator[Callable[..., Any], None]:
    made: list[Limiter] = []

    async def make(when_away: str = "open", timing: Timing | None = None) -> Limiter:
        fields = {"redis_url": url_of(own_redis), "timeout_s": TIMEOUT_S, "when_away": when_away}
        limiter = Limiter(LimitsConfig.model_validate(fields), LimitMetrics(), timing)
        made.append(limiter)
        await limiter.start()
        return limiter

    yield make
    for limiter in made:
        await limiter.stop()


@pytest.fixture
async def connect(own_redis: Any) -> AsyncGenerator[Callable[..., Any], None]:
    made: list[RedisCounts] = []

    async def make(timeout_s: float = 0.5) -> RedisCounts:
        counts = RedisCounts(url_of(own_redis), timeout_s, Timing(), LimitMetrics())
        made.append(counts)
        await counts.start()
        return counts

    yield make
    for counts in made:
        await counts.stop()


async def back(counts: Limiter | RedisCounts) -> None:
    async with asyncio.timeout(60):
        while counts.away:  # noqa: ASYNC110  it is another task that finds out
            await asyncio.sleep(0.01)


async def used(limiter: Limiter, of: Any) -> int:
    """Use of a limit, as a reservation that is never admitted is told."""
    refused = await limiter.reserve(reserve(of, tokens=of.maximum + 1))
    assert not isinstance(refused, Active)
    return refused.usages[0].used


async def test_a_redis_that_lost_its_scripts_is_given_them_again(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(), make_limit(TOKENS, 1000)
    with redis.Redis(port=own_redis.port) as client:
        client.script_flush()
    holds = await asyncio.gather(*[limiter.reserve(reserve(tpm, tokens=10)) for _ in range(20)])
    assert all(isinstance(hold, Active) for hold in holds) and not limiter.away
    assert await used(limiter, tpm) == 200


async def test_open_counts_in_the_process_while_redis_is_away_and_shares_again_when_it_is_back(
    own_redis: Any, limiters: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvarn.limits")
    limiter, tpm = await limiters(), make_limit(TOKENS, 100)
    assert isinstance(await limiter.reserve(reserve(tpm, tokens=100)), Active)
    own_redis.kill()
    hold = await limiter.reserve(reserve(tpm, tokens=100))
    assert isinstance(hold, Active) and limiter.away
    for _ in range(20):
        assert not isinstance(await limiter.reserve(reserve(tpm, tokens=1)), Active), "the process counts meanwhile"
    assert sum("Redis is away" in record.message for record in caplog.records) == 1, "said once"
    own_redis.start()
    await back(limiter)
    assert isinstance(await limiter.reserve(reserve(tpm, tokens=100)), Active), "a new Redis has counted nothing yet"
    assert sum("Redis is back" in record.message for record in caplog.records) == 1


async def test_a_gateway_starts_without_redis_and_finds_it_later(own_redis: Any, limiters: Any) -> None:
    own_redis.kill()
    limiter = await limiters()
    assert limiter.away and isinstance(await limiter.reserve(reserve(make_limit(TOKENS, 100))), Active)
    own_redis.start()
    await back(limiter)


async def test_reservations_that_a_hanging_redis_made_after_all_are_given_back(own_redis: Any, limiters: Any) -> None:
    limiter, tpm, places = await limiters(), make_limit(TOKENS, 1000), make_limit(CONCURRENCY, 100)
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    async with asyncio.timeout(20 * TIMEOUT_S - 1):  # one after the other they would wait for longer
        running = await asyncio.gather(*[limiter.reserve(reserve(tpm, places, tokens=10)) for _ in range(20)])
    os.kill(own_redis.process.pid, signal.SIGCONT)
    await back(limiter)
    assert await used(limiter, tpm) == 0
    again = await limiter.reserve(reserve(places))
    assert isinstance(again, Active) and again.decision.usages[0].used == 21, "those that run hold their places there"
    for each in running:
        each.settle(0)
    last = await limiter.reserve(reserve(places))
    assert isinstance(last, Active) and last.decision.usages[0].used == 2


async def test_a_settlement_that_could_not_be_sent_is_sent_when_redis_is_back(own_redis: Any, limiters: Any) -> None:
    limiter, tpm, rpm = await limiters(), make_limit(TOKENS, 1000), make_limit(REQUESTS, 10)
    used_some, lost = (
        await limiter.reserve(reserve(tpm, rpm, tokens=500)),
        await limiter.reserve(reserve(tpm, rpm, tokens=300)),
    )
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    await limiter.reserve(reserve(tpm))
    assert limiter.away
    used_some.settle(200)
    lost.settle(0, whole=True)
    os.kill(own_redis.process.pid, signal.SIGCONT)
    await back(limiter)
    assert await used(limiter, tpm) == 200
    assert (await limiter.reserve(reserve(rpm))).decision.usages[0].used == 2


async def test_a_caller_that_gives_up_waiting_holds_nothing(own_redis: Any, limiters: Any) -> None:
    limiter, tpm = await limiters(), make_limit(TOKENS, 1000)
    waiting = [asyncio.create_task(limiter.reserve(reserve(tpm, tokens=10))) for _ in range(20)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await used(limiter, tpm) == 100


async def test_long_answers_are_charged_while_they_are_written(limiters: Any) -> None:
    limiter, tpm = await limiters(timing=Timing(lease_ms=600)), make_limit(TOKENS, 1000)
    await limiter.reserve(reserve(tpm, tokens=10), used=lambda: 700)
    async with asyncio.timeout(60):
        while await used(limiter, tpm) != 700:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nothing_is_left_in_redis_for_ever(own_redis: Any, limiters: Any) -> None:
    limiter = await limiters()
    limits = [make_limit(kind, 100) for kind in (REQUESTS, TOKENS, CONCURRENCY)]
    settled = await limiter.reserve(reserve(*limits, make_budget_limit(100, 10), tokens=10))
    await limiter.reserve(reserve(*limits, tokens=10))
    settled.settle(5)
    await used(limiter, limits[1])
    with redis.Redis(port=own_redis.port) as client:
        keys = {key: client.pttl(key) for key in client.scan_iter()}
        counts = [ttl for key, ttl in keys.items() if key.startswith(b"kvarn:limits:{org-1}")]
        assert len(counts) == 5 and all(0 < ttl <= 61_000 for ttl in counts)
        assert all(0 < ttl <= 86_400_000 for ttl in keys.values())


async def test_a_url_that_cannot_be_used_is_told_at_the_start() -> None:
    config = LimitsConfig(redis_url="redis://localhost:no-port/0")
    with pytest.raises(ConfigError, match=r"limits\.redis_url"):
        Limiter(config, LimitMetrics())


async def test_redis_is_asked_again_whatever_went_wrong_the_last_time(
    own_redis: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, tries = await connect(), []
    real = counts._run_probes

    async def try_all() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ZeroDivisionError("an unforeseen fault")
        await real()

    monkeypatch.setattr(counts, "_run_probes", try_all)
    own_redis.kill()
    with pytest.raises(LimitsAwayError):
        await counts.reserve(reserve())
    assert counts.away
    own_redis.start()
    await back(counts)
    assert len(tries) >= 3


async def test_a_time_out_leaves_no_cancellation_behind_whatever_came_of_the_work() -> None:
    async def breaks() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    task = asyncio.current_task()
    assert task is not None
    for work, error in ((breaks(), ConnectionError), (asyncio.Event().wait(), TimeoutError)):
        with pytest.raises(error):
            await _until(time.monotonic() + 0.01, work)
        assert task.cancelling() == 0


def renewal(reservation: Reservation, used: int = 0) -> Update:
    return Update(reservation, used, ended=False)


async def used_tokens(counts: RedisCounts) -> int:
    return (await counts.reserve(reserve(make_limit(TOKENS, 10**6), tokens=0))).usages[0].used


async def test_a_reservation_waits_for_few_of_many_updates(connect: Any) -> None:
    counts, running = await connect(timeout_s=20), reserve(make_limit(TOKENS, 100))
    for _ in range(3000):
        counts.update(renewal(running))
    assert (await counts.reserve(reserve())).admitted
    assert len(counts._owed) > 2000


async def test_an_update_may_have_waited_longer_than_a_call_may_take(connect: Any, own_redis: Any) -> None:
    counts, running = await connect(timeout_s=5), reserve(make_limit(TOKENS, 10**6), tokens=5)
    await counts.reserve(running)
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    counts.update(Update(running, 70))
    counts._owed[-1].called -= 10
    asking = asyncio.create_task(used_tokens(counts))
    await asyncio.sleep(0)
    os.kill(own_redis.process.pid, signal.SIGCONT)
    assert await asking == 70
    assert not counts.away and not counts._owed


async def test_a_call_that_redis_refuses_is_given_up_alone(
    connect: Any, own_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counts, poisoned = await connect(), make_limit(TOKENS, 100, holder="poisoned")
    with redis.Redis(port=own_redis.port) as client:
        client.lpush(poisoned.key, "a list")
    refused = asyncio.create_task(counts.reserve(reserve(poisoned)))
    assert (await counts.reserve(reserve(make_limit(TOKENS, 100)))).admitted
    with pytest.raises(LimitsAwayError, match="WRONGTYPE"):
        await refused
    assert not counts.away
    assert any("refuses 1 of" in record.message for record in caplog.records)


async def test_an_update_is_kept_while_redis_takes_no_writes(connect: Any, own_redis: Any) -> None:
    counts, running = await connect(), reserve(make_limit(TOKENS, 10**6), tokens=5)
    await counts.reserve(running)
    with redis.Redis(port=own_redis.port) as client:
        client.config_set("min-replicas-to-write", 1)
        counts.update(Update(running, 70))
        async with asyncio.timeout(60):
            while not counts.away:  # noqa: ASYNC110  it is another task that finds out
                await asyncio.sleep(0.01)
        client.config_set("min-replicas-to-write", 0)
    await back(counts)
    assert await used_tokens(counts) == 70


async def test_settlements_that_were_kept_too_long_are_given_up(connect: Any, own_redis: Any) -> None:
    counts, running = await connect(), reserve(make_limit(TOKENS, 100))
    own_redis.kill()
    with pytest.raises(LimitsAwayError):
        await counts.reserve(running)
    counts.update(Update(running))
    assert len(counts._owed) == 2, "the reservation is given back"
    for call in counts._owed:
        call.called -= 60
    own_redis.start()
    await back(counts)
    assert not counts._owed


async def test_stopped_counts_connect_no_more(connect: Any, own_redis: Any) -> None:
    counts = await connect()
    await counts.stop()
    counts.update(Update(reserve()))
    with pytest.raises(LimitsAwayError):
        await counts.reserve(reserve())
    with redis.Redis(port=own_redis.port) as client:
        assert len(client.client_list()) == 1
