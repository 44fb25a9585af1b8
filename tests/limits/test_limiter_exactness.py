"""Two hundred clients at once: not one token more than the limit, and all of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvarn.config.platform import LimitsConfig
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.types import Kind
from kvarn.observe.limits import LimitMetrics
from limit_reservations import make_limit, make_reservation

CLIENTS = 200
LIMIT = 20_000


@asynccontextmanager
async def limiters(url: str | None, number: int) -> AsyncGenerator[list[Limiter], None]:
    config = LimitsConfig(redis_url=url, timeout_s=20)
    made = [Limiter(config, LimitMetrics()) for _ in range(number)]
    for limiter in made:
        await limiter.start()
    yield made
    for limiter in made:
        await limiter.stop()


async def _ask(limiter: Limiter, dice: random.Random, tpm: Any, counted: list[int]) -> None:
    """One client: asks until it was refused a single token; uses a part of what it reserved, or fails, or all."""
    while True:
        tokens = dice.randint(1, 60)
        hold = await limiter.take(make_reservation(tpm, tokens=tokens))
        if isinstance(hold, ActiveReservation):
            spent = dice.choice([0, tokens // 2, tokens])
            await asyncio.sleep(0)
            counted.append(spent)
            hold.settle(spent, whole=spent == 0)
        elif not isinstance(hold := await limiter.take(make_reservation(tpm, tokens=1)), ActiveReservation):
            return
        else:
            counted.append(1)
            hold.settle(1)


@pytest.mark.parametrize("gateways", [0, 2], ids=["in process", "two over Redis"])
async def test_two_hundred_clients_get_the_limit_and_not_a_token_more(own_redis: Any, gateways: int) -> None:
    tpm, counted = make_limit(Kind.TOKENS, LIMIT), []
    url = f"redis://127.0.0.1:{own_redis.port}/0" if gateways else None
    async with limiters(url, gateways or 1) as made:
        clients = [_ask(made[i % len(made)], random.Random(i), tpm, counted) for i in range(CLIENTS)]
        async with asyncio.timeout(50):
            await asyncio.gather(*clients)
        last = await made[0].take(make_reservation(tpm))
    assert not isinstance(last, ActiveReservation)
    assert last.usages[0].used == LIMIT == sum(counted)
