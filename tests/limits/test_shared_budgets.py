"""Budgets of several gateways: together they never pass a hard limit, whichever of them dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from kvarn.config.platform import LimitsConfig
from kvarn.limits.counts import Counts, Timing
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.types import Decision, Limit, LimitsAwayError, Reservation
from kvarn.observe.limits import LimitMetrics
from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import Budget
from sample_usage import make_budget, make_event

CLIENTS = 200
LIMIT = 3000
HOLDERS = ("org-a", "proj_a")


@dataclass
class Database:
    """Use that all gateways have written."""

    rules: list[Budget]
    spent: int = 0


@dataclass
class Gateway:
    """One gateway's limits, over what a ledger would do."""

    database: Database
    limiter: Limiter
    unwritten: list[LedgerEvent] = field(default_factory=list)
    number: int = 0

    async def ask(self, tokens: int) -> ActiveReservation | Decision:
        self.number += 1
        _, limits = self.limiter.budgets.limits(HOLDERS, tokens, 0, time.time())
        return await self.limiter.reserve(Reservation(f"use_{id(self)}_{self.number}", "org-a", limits, tokens))

    async def admitted(self, tokens: int) -> ActiveReservation:
        taken = await self.ask(tokens)
        assert isinstance(taken, ActiveReservation)
        return taken

    async def left(self, tokens: int) -> int:
        """Tokens that are not spent, as a refusal of so many says."""
        refused = await self.ask(tokens)
        assert isinstance(refused, Decision)
        return self.hard_limit - refused.usages[0].used

    def finish(self, held: ActiveReservation, used: int) -> None:
        """A request ends as one does: its event is in the journal first."""
        event = make_event(self.number, input_tokens=used, output_tokens=0, finished_at=int(time.time()))
        self.limiter.budgets.finished(event)
        self.unwritten.append(event)
        held.settle(used)

    def write(self) -> None:
        events, self.unwritten = self.unwritten, []
        self.database.spent += sum(event.tokens for event in events)
        self.limiter.budgets.written(events)

    def read(self) -> None:
        spent = {rule.id: self.database.spent for rule in self.database.rules}
        self.limiter.budgets.replace(self.database.rules, spent, time.time())

    @property
    def hard_limit(self) -> int:
        return int(self.database.rules[0].hard_limit or 0)

    @property
    def waiting(self) -> int:
        return sum(event.tokens for event in self.unwritten)


@pytest.fixture
async def over_redis(own_redis: Any) -> AsyncGenerator[Callable[..., Any], None]:
    """Gateways of one database and one Redis."""
    made: list[Gateway] = []

    async def make(
        number: int, hard_limit: int = 100, when_away: Any = "open", timing: Timing | None = None
    ) -> list[Gateway]:
        database = Database([make_budget(hard_limit=hard_limit, period="total")])
        url = f"redis://127.0.0.1:{own_redis.port}/0"
        config = LimitsConfig(redis_url=url, timeout_s=2.0, when_away=when_away)
        made.extend(Gateway(database, Limiter(config, LimitMetrics(), timing)) for _ in range(number))
        for gateway in made:
            await gateway.limiter.start()
            gateway.read()
        return made

    yield make
    for gateway in made:
        await gateway.limiter.stop()


@pytest.fixture(params=["main process", "Redis"])
def gateways(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Gateways of one database that count together."""
    if request.param == "Redis":
        make_over_redis: Callable[..., Any] = request.getfixturevalue("over_redis")
        return make_over_redis

    async def make(number: int, hard_limit: int = 100) -> list[Gateway]:
        database, counts = Database([make_budget(hard_limit=hard_limit, period="total")]), Counts()
        made = [Gateway(database, Limiter(LimitsConfig(), LimitMetrics(), local=counts)) for _ in range(number)]
        for gateway in made:
            gateway.read()
        return made

    return make


def held_in_redis(service: Any) -> int:
    with redis.Redis(port=service.port) as client:
        return int(client.hget("kvarn:budgets:{org-a}:budget-1", "held") or 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)


async def test_two_gateways_never_pass_a_hard_limit_with_two_hundred_clients(gateways: Any) -> None:
    servers: list[Gateway] = await gateways(2, LIMIT)
    database, in_flight, refused = servers[0].database, list[int](), 0

    def check() -> None:
        come_to = database.spent + sum(server.waiting for server in servers) + sum(in_flight)
        assert come_to <= LIMIT, "more than the budget"

    async def client(number: int) -> None:
        nonlocal refused
        dice, server = random.Random(number), servers[number % 2]
        for _ in range(6):
            tokens = dice.randint(1, 60)
            held = await server.ask(tokens)
            if isinstance(held, Decision):
                refused += 1
                continue
            in_flight.append(tokens)
            check()
            await asyncio.sleep(dice.random() * 0.02)
            in_flight.remove(tokens)
            server.finish(held, dice.randint(0, tokens))
            check()

    async def ledger(server: Gateway, dice: random.Random) -> None:
        while True:
            await asyncio.sleep(dice.random() * 0.01)
            server.write()
            if dice.random() < 0.5:
                server.read()

    writing = [asyncio.create_task(ledger(server, random.Random(-number))) for number, server in enumerate(servers)]
    await asyncio.gather(*[client(number) for number in range(CLIENTS)])
    for task in writing:
        task.cancel()
    assert refused, "the test asked for too little"
    for server in servers:
        server.write()
    for server in servers:
        server.read()
    left = LIMIT - database.spent
    assert left >= 0 and await servers[0].left(left + 1) == left
    await servers[1].admitted(left) if left else None  # whatever was held is given back: all that is left can be had


async def test_use_that_has_ended_but_is_not_read_back_counts_for_the_others(gateways: Any) -> None:
    first, second = await gateways(2)
    flying = await first.admitted(80)
    assert await second.left(30) == 100, "in flight is not spent"
    first.finish(flying, 80)  # and the database is away
    assert await first.left(30) == 20, "its own requests are known to be spent"
    assert await second.left(30) == 100
    first.write()  # the second has not looked yet
    assert await second.left(30) == 100
    first.read()
    assert await first.left(30) == 20  # its update has arrived before
    assert await second.left(30) == 20
    await second.admitted(20)


@pytest.mark.parametrize("when_away", ["open", "closed"])
async def test_a_redis_that_is_away_opens_or_closes_and_knows_all_when_it_is_back(
    own_redis: Any, over_redis: Any, when_away: str
) -> None:
    first, second = await over_redis(2, when_away=when_away)
    early = await first.admitted(30)
    own_redis.kill()
    mine = 30
    for server in (first, second):  # each finds out by itself
        if when_away == "closed":
            with pytest.raises(LimitsAwayError):
                await server.ask(20)
        else:
            await server.admitted(20)
            mine += 20
    if when_away == "open":
        assert isinstance(await first.ask(51), Decision), "what it has in flight counts all the same"
    own_redis.start()  # empty
    await until(lambda: not (first.limiter.away or second.limiter.away) and held_in_redis(own_redis) == mine)
    assert isinstance(await second.ask(101 - mine), Decision)
    first.finish(early, 10)
    await first.admitted(1)
    assert held_in_redis(own_redis) == mine - 30 + 10 + 1


async def test_a_redis_that_has_forgotten_is_soon_told_what_a_silent_gateway_holds(
    own_redis: Any, over_redis: Any
) -> None:
    silent, asks = await over_redis(2, timing=Timing(lease_ms=6000))
    await asks.admitted(1)
    silent.finish(await silent.admitted(20), 20)
    await silent.admitted(40)
    with redis.Redis(port=own_redis.port) as client:
        client.flushall()
    await until(lambda: held_in_redis(own_redis) == 61)
    assert isinstance(await asks.ask(40), Decision)
    await asks.admitted(39)


async def test_a_budget_that_is_deleted_while_a_request_runs_is_given_back(own_redis: Any, over_redis: Any) -> None:
    (server,) = await over_redis(1)
    held: ActiveReservation = await server.admitted(40)
    server.database.rules = []
    server.read()
    held.settle(40)
    limit: Limit
    (limit,) = held.reservation.limits
    await server.limiter.reserve(Reservation("use_last", "org-a", (limit,), 0))
    assert held_in_redis(own_redis) == 40, "only the last one's"
