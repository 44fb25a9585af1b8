"""Two hundred clients at once: not one token more than the limit, and all of it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvarn.config.platform import LimitsConfig
from kvarn.fleet.channel import Channel
from kvarn.fleet.shared_counts import RemoteCounts, counts_handlers
from kvarn.limits.counts import Counts
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.types import Kind, LimitsAwayError
from kvarn.observe.limits import LimitMetrics
from limit_reservations import make_limit, make_reservation

CLIENTS = 200
LIMIT = 20_000


@asynccontextmanager
async def main_process() -> AsyncGenerator[tuple[Counts, RemoteCounts, Channel], None]:
    """The counts of a main process, and another process' way to them."""
    ends, counts = socket.socketpair(), Counts()
    main = await Channel.open(ends[0], counts_handlers(counts))
    other = await Channel.open(ends[1], {})
    yield counts, RemoteCounts(other), main
    for channel in (main, other):
        channel.close()
        await channel.closed.wait()


@asynccontextmanager
async def two_processes() -> AsyncGenerator[list[Limiter], None]:
    async with main_process() as (counts, remote, _):
        yield [Limiter(LimitsConfig(), LimitMetrics(), local=local) for local in (counts, remote)]


@asynccontextmanager
async def two_over_redis(port: int) -> AsyncGenerator[list[Limiter], None]:
    config = LimitsConfig(redis_url=f"redis://127.0.0.1:{port}/0", timeout_s=20)
    made = [Limiter(config, LimitMetrics()) for _ in range(2)]
    for limiter in made:
        await limiter.start()
    yield made
    for limiter in made:
        await limiter.stop()


async def _ask(limiter: Limiter, dice: random.Random, tpm: Any, counted: list[int]) -> None:
    """One client: asks until it was refused a single token; uses a part of what it reserved, or fails, or all."""
    while True:
        tokens = dice.randint(1, 60)
        hold = await limiter.reserve(make_reservation(tpm, tokens=tokens))
        if isinstance(hold, ActiveReservation):
            spent = dice.choice([0, tokens // 2, tokens])
            await asyncio.sleep(0)
            counted.append(spent)
            hold.settle(spent, whole=spent == 0)
        elif not isinstance(hold := await limiter.reserve(make_reservation(tpm, tokens=1)), ActiveReservation):
            return
        else:
            counted.append(1)
            hold.settle(1)


@pytest.mark.parametrize("places", ["two processes", "two over Redis"])
async def test_two_hundred_clients_get_the_limit_and_not_a_token_more(
    request: pytest.FixtureRequest, places: str
) -> None:
    tpm, counted = make_limit(Kind.TOKENS, LIMIT), []
    own_redis = None if places == "two processes" else request.getfixturevalue("own_redis")
    async with two_processes() if own_redis is None else two_over_redis(own_redis.port) as made:
        clients = [_ask(made[i % len(made)], random.Random(i), tpm, counted) for i in range(CLIENTS)]
        async with asyncio.timeout(200):
            await asyncio.gather(*clients)
        last = await made[0].reserve(make_reservation(tpm))
    assert not isinstance(last, ActiveReservation)
    assert last.usages[0].used == LIMIT == sum(counted)


async def test_a_process_that_stops_waiting_for_the_main_process_holds_nothing() -> None:
    places = make_limit(Kind.CONCURRENCY, 1)
    async with main_process() as (_, remote, _):
        asking = asyncio.create_task(remote.reserve(make_reservation(places)))
        await asyncio.sleep(0)
        asking.cancel()
        assert await asyncio.gather(asking, return_exceptions=True)
        assert (await remote.reserve(make_reservation(places))).admitted


async def test_without_the_main_process_nothing_is_admitted() -> None:
    async with main_process() as (_, remote, main):
        main.close()
        with pytest.raises(LimitsAwayError):
            await remote.reserve(make_reservation(make_limit(Kind.TOKENS, 10)))
