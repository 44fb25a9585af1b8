"""Budgets of several gateways that share a real Redis: together they never pass a hard limit, whoever dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from kvarn.limits.redis_scripts import RedisScripts
from kvarn.limits.types import LimitsAwayError
from kvarn.metering.budget_reservations import BudgetReservation, BudgetReservations
from kvarn.metering.budgets import BudgetSpentError, BudgetTracker
from kvarn.observe.limits import LimitMetrics
from kvarn.store.ledger import LedgerEvent, period_name
from kvarn.store.models import Budget
from sample_usage import make_budget, make_event

CLIENTS = 200
LIMIT = 3000
LEASE_MS = 1500
"""Of the gateway that dies; the others' outlast any pause of a busy machine."""
RULE = make_budget(hard_limit=LIMIT)
HOLDERS = ("org-a", "proj_a")


@dataclass
class Database:
    """What all gateways have written."""

    rules: list[Budget]
    spent: int = 0

    def reading(self) -> dict[str, int]:
        return {rule.id: self.spent for rule in self.rules}


@dataclass
class Gateway:
    """One gateway's book and reservations, over what a ledger would do."""

    database: Database
    redis: RedisScripts
    reservations: BudgetReservations
    book: BudgetTracker
    unwritten: list[LedgerEvent] = field(default_factory=list)
    number: int = 0

    async def take(self, name: str, tokens: int) -> BudgetReservation | None:
        return await self.reservations.reserve(name, HOLDERS, tokens, 0, time.time())

    def finish(self, held: BudgetReservation, used: int) -> None:
        """A request ends as one does: its event is in the journal first."""
        self.number += 1
        at = int(time.time())
        event = make_event(self.number, input_tokens=used, output_tokens=0, finished_at=at)
        self.book.finished(event)
        self.unwritten.append(event)
        self.reservations.release(held)

    def write(self) -> None:
        events, self.unwritten = self.unwritten, []
        self.database.spent += sum(event.tokens for event in events)
        self.book.written(events)

    def read(self) -> None:
        self.book.replace(self.database.rules, self.database.reading(), time.time())
        self.reservations.read()

    @property
    def waiting(self) -> int:
        return sum(event.tokens for event in self.unwritten)


@pytest.fixture
async def gateways(own_redis: Any) -> AsyncGenerator[Callable[..., Any], None]:
    """Gateways of one database and one Redis."""
    made: list[Gateway] = []

    async def make(number: int, when_away: Any = "open", lease_ms: int = 30_000, **changes: Any) -> list[Gateway]:
        database = Database([make_budget(**{"hard_limit": LIMIT, **changes})])
        for _ in range(number):
            scripts = RedisScripts(f"redis://127.0.0.1:{own_redis.port}/0", 2.0, lease_ms / 1000, LimitMetrics())
            book = BudgetTracker()
            reservations = BudgetReservations(book, scripts, when_away, lease_ms)
            made.append(Gateway(database, scripts, reservations, book))
            reservations.start()
            await scripts.start()
            made[-1].read()
        return made

    yield make
    for gateway in made:
        await gateway.reservations.stop()
        await gateway.redis.stop()


def held_in_redis(service: Any) -> int:
    with redis.Redis(port=service.port) as client:
        return int(client.hget("kvarn:budgets:{org-a}:budget-1", "held") or 0)


async def test_two_gateways_never_pass_a_hard_limit_with_two_hundred_clients(own_redis: Any, gateways: Any) -> None:
    servers: list[Gateway] = await gateways(2)
    database, in_flight, refused = servers[0].database, dict[str, int](), 0

    def check() -> None:
        come_to = database.spent + sum(server.waiting for server in servers) + sum(in_flight.values())
        assert come_to <= LIMIT, "more than the budget"

    async def client(number: int) -> None:
        nonlocal refused
        dice, server = random.Random(number), servers[number % 2]
        for turn in range(6):
            name, tokens = f"use_{number}_{turn}", dice.randint(1, 60)
            try:
                held = await server.take(name, tokens)
            except BudgetSpentError:
                refused += 1
                continue
            assert held is not None
            in_flight[name] = tokens
            check()
            await asyncio.sleep(dice.random() * 0.02)
            server.finish(held, dice.randint(0, in_flight.pop(name)))
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
    assert left >= 0
    with pytest.raises(BudgetSpentError) as refusal:
        await servers[0].take("use_last", left + 1)
    assert (refusal.value.left, refusal.value.requested) == (left, left + 1)
    if left:  # whatever was held is given back: all that is left can be had
        assert await servers[1].take("use_last", left) is not None
        assert held_in_redis(own_redis) == left


async def test_what_a_gateway_has_not_read_back_counts_for_the_others(gateways: Any) -> None:
    first, second = await gateways(2, hard_limit=100)
    first.finish(await first.take("use_1", 80), 80)
    with pytest.raises(BudgetSpentError):
        await second.take("use_2", 30)
    first.write()  # the second has not looked yet
    with pytest.raises(BudgetSpentError):
        await second.take("use_2", 30)
    first.read()
    with pytest.raises(BudgetSpentError):
        await second.take("use_2", 30)
    assert await second.take("use_2", 20) is not None


async def test_what_a_dead_gateway_reserved_ends_by_itself_and_that_of_a_living_one_does_not(
    own_redis: Any, gateways: Any
) -> None:
    dies, lives = await gateways(2, lease_ms=LEASE_MS, hard_limit=100)
    await dies.take("use_1", 60)
    await lives.take("use_2", 40)
    await dies.reservations.stop()  # nothing is renewed, nothing given back
    with pytest.raises(BudgetSpentError):
        await lives.take("use_3", 60)
    await asyncio.sleep(2 * LEASE_MS / 1000)
    assert await lives.take("use_3", 60) is not None
    await asyncio.sleep(2 * LEASE_MS / 1000)
    assert held_in_redis(own_redis) == 100
    with pytest.raises(BudgetSpentError):
        await dies.take("use_4", 1)


async def test_a_request_that_nobody_waits_for_any_more_reserves_nothing(own_redis: Any, gateways: Any) -> None:
    (server,) = await gateways(1)
    asking = asyncio.create_task(server.take("use_1", 50))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    await server.take("use_2", 1)
    assert held_in_redis(own_redis) == 1


async def test_a_new_period_begins_with_nothing_spent(gateways: Any) -> None:
    (server,) = await gateways(1, hard_limit=100)
    now = time.time()
    server.database.spent = 100
    server.read()
    with pytest.raises(BudgetSpentError):
        await server.take("use_1", 1)
    tomorrow = now + 86_400
    assert period_name("day", tomorrow) > period_name("day", now)
    assert await server.reservations.reserve("use_2", HOLDERS, 100, 0, tomorrow) is not None
    with pytest.raises(BudgetSpentError):
        await server.reservations.reserve("use_3", HOLDERS, 1, 0, tomorrow)


@pytest.mark.parametrize("when_away", ["open", "closed"])
async def test_a_redis_that_is_away_opens_or_closes_and_knows_all_when_it_is_back(
    own_redis: Any, gateways: Any, when_away: str
) -> None:
    first, second = await gateways(2, when_away, hard_limit=100)
    early = await first.take("use_1", 30)
    own_redis.kill()
    mine = 30
    for server in (first, second):  # each finds out by itself
        if when_away == "closed":
            with pytest.raises(LimitsAwayError):
                await server.take(f"use_2_{id(server)}", 20)
        else:
            assert await server.take(f"use_2_{id(server)}", 20) is not None
            mine += 20
    own_redis.start()  # empty
    async with asyncio.timeout(60):
        while first.redis.away or second.redis.away:  # noqa: ASYNC110  it is another task that finds out
            await asyncio.sleep(0.01)
        while held_in_redis(own_redis) < mine:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(BudgetSpentError):
        await second.take("use_3", 101 - mine)
    first.finish(early, 10)
    assert await first.take("use_4", 1) is not None
    assert held_in_redis(own_redis) == mine - 30 + 10 + 1


async def test_a_large_sum_of_money_is_held_to_the_last_billionth(own_redis: Any, gateways: Any) -> None:
    limit = 4_000_000_000_000_001
    (server,) = await gateways(1, hard_limit=limit, unit="cost", currency="usd")
    now = time.time()
    assert await server.reservations.reserve("use_1", HOLDERS, 1, limit - 1, now) is not None
    with pytest.raises(BudgetSpentError):
        await server.reservations.reserve("use_2", HOLDERS, 1, 2, now)
    assert await server.reservations.reserve("use_3", HOLDERS, 1, 1, now) is not None
    assert held_in_redis(own_redis) == limit


async def test_a_gateway_whose_clock_is_ahead_opens_no_budget_of_the_others(gateways: Any) -> None:
    fast, server = await gateways(2, hard_limit=100)
    server.database.spent = 100
    next_year = time.time() + 366 * 86_400
    fast.book.replace(fast.database.rules, {}, next_year)
    held = await fast.reservations.reserve("use_1", HOLDERS, 1, 0, next_year)
    assert held is not None
    fast.reservations.release(held)
    server.read()
    with pytest.raises(BudgetSpentError):
        await server.take("use_2", 1)
    with pytest.raises(BudgetSpentError):
        await fast.reservations.reserve("use_3", HOLDERS, 101, 0, next_year)


async def test_what_is_in_flight_when_a_period_ends_counts_in_the_next(gateways: Any) -> None:
    first, second = await gateways(2, hard_limit=100)
    await first.take("use_1", 60)
    tomorrow = time.time() + 86_400
    with pytest.raises(BudgetSpentError):
        await second.reservations.reserve("use_2", HOLDERS, 50, 0, tomorrow)
    assert await second.reservations.reserve("use_3", HOLDERS, 40, 0, tomorrow) is not None


async def test_a_redis_that_has_forgotten_is_told_within_seconds_what_a_silent_gateway_holds(
    own_redis: Any, gateways: Any
) -> None:
    silent, asks = await gateways(2, hard_limit=100)
    await asks.take("use_1", 1)
    await silent.take("use_2", 60)
    with redis.Redis(port=own_redis.port) as client:
        client.flushall()
    async with asyncio.timeout(60):
        while held_in_redis(own_redis) < 61:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    with pytest.raises(BudgetSpentError):
        await asks.take("use_3", 40)
    assert await asks.take("use_4", 39) is not None


@pytest.mark.parametrize("change", ["added", "deleted"])
async def test_budgets_that_change_while_redis_does_not_answer_leave_nothing_reserved(
    own_redis: Any, gateways: Any, change: str
) -> None:
    (server,) = await gateways(1, hard_limit=100)
    (rule,) = server.database.rules
    both = [rule, make_budget(id="budget-2", holder_id="proj_a")]
    server.database.rules = both if change == "deleted" else [rule]
    server.read()
    own_redis.kill()
    asking = asyncio.create_task(server.take("use_1", 40))
    await asyncio.sleep(0)
    server.database.rules = [rule] if change == "deleted" else both
    server.read()
    held = await asking
    assert [status.rule.id for status in held.statuses] == [each.id for each in server.database.rules]
    server.reservations.release(held)
    assert not server.book._reserved


async def test_thousands_of_budgets_hold_no_request_up_when_redis_is_back(own_redis: Any, gateways: Any) -> None:
    (server,) = await gateways(1, hard_limit=100)
    server.database.rules += [make_budget(id=f"budget-{n}", holder_id=f"proj_{n}") for n in range(4000)]
    server.read()
    own_redis.kill()
    await server.take("use_1", 10)
    assert server.redis.away
    own_redis.start()
    async with asyncio.timeout(60):
        while server.redis.away:  # noqa: ASYNC110  it is another task that finds out
            await asyncio.sleep(0.01)
    assert len(server.redis._owed) <= 2, "only what is held is told"


async def test_what_has_ended_but_is_not_entered_counts_for_the_others(gateways: Any) -> None:
    first, second = await gateways(2, hard_limit=100)
    flying = await first.take("use_1", 80)
    with pytest.raises(BudgetSpentError) as refusal:
        await second.take("use_2", 30)
    assert refusal.value.left == 100
    first.finish(flying, 80)  # and the database is away
    await first.redis.ask(first.redis.probes[-1])  # after the telling, in the same order
    with pytest.raises(BudgetSpentError) as refusal:
        await second.take("use_2", 30)
    assert refusal.value.left == 100
    with pytest.raises(BudgetSpentError) as refusal:
        await first.take("use_3", 30)
    assert refusal.value.left == 20, "whose own requests they were knows that they are spent"
    first.write()
    first.read()
    assert await second.take("use_4", 20) is not None


async def test_a_deleted_budget_is_forgotten(gateways: Any) -> None:
    (server,) = await gateways(1)
    server.finish(await server.take("use_1", 10), 10)
    server.database.rules = []
    server.read()
    assert not server.reservations._reported
