"""What requests in flight may come to, known to all gateways that share a Redis: together they never pass a hard limit.

Redis holds of each budget what is spent, as the latest reading of the database had it, and by its holder what may come
on top: of each request in flight the most that it can come to, and of each gateway what its requests came to and it has
not read back yet. Whatever is spent is thus counted at every moment: by its request, then by its gateway, then by the
reading that lets the gateway forget it; for a moment by two of them. A request is let in while all of it together
stays within the limit. What is held has a lease: that of a dead gateway ends by itself.

A Redis that starts may have forgotten what is held, or know what was held once. So it keeps since when it has known,
only for as long as gateways check it, which each does every second; one that finds another time there tells all that it
holds. Before each has had the time to do so, Redis lets nobody in and counts as being away.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from kvarn.limits.local import Timing
from kvarn.limits.scripts import Call, Script, ScriptRunner
from kvarn.limits.types import LimitsAwayError
from kvarn.metering.budgets import BudgetBook, BudgetSpentError, Reservation, Standing
from kvarn.store.ids import new_id

SCRIPT = Path(__file__).with_name("budgets.lua").read_text(encoding="utf-8")

_RENEWALS = 3
"""Renewals in the life of a lease: two may be lost."""
_KEEP_MS = 86_400_000
"""How long Redis remembers a budget that nobody asks for: longer than any reading of the database is old."""
_CHECK_S = 1.0
_CHECK_MS = 5_000
"""How long Redis remembers since when it has known what is held, unless a gateway checks."""
_TELL_S = 0.5
"""For a gateway to tell what it holds, once it has noticed that Redis may have forgotten."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a request in flight has reserved."""

    work_id: str
    reservation: Reservation
    standings: tuple[Standing, ...] = ()
    """Of the budgets in Redis under which it is."""

    def amount(self, standing: Standing) -> int:
        """What it may come to under a budget."""
        return standing.rule.amount(self.reservation.tokens, self.reservation.cost)


class Reservations:
    """Reserves for one gateway.

    Args:
        book: What the gateway knows itself.
        redis: Where gateways, or the processes of one, share what they reserve; None: they do not.
        when_away: While Redis is away, `open` decides by the book alone, `closed` refuses.
        lease_ms: How long what is held lasts unless it is renewed.
        grace_ms: How long a Redis that has started lets nobody in. Default: until every gateway will have noticed.
    """

    def __init__(
        self,
        book: BudgetBook,
        redis: ScriptRunner | None = None,
        when_away: Literal["open", "closed"] = "open",
        lease_ms: int = Timing().lease_ms,
        grace_ms: int | None = None,
    ) -> None:
        self._book = book
        self._redis = redis
        self._when_away = when_away
        self._lease_ms = lease_ms
        self._script = Script(SCRIPT)
        self._me = new_id("gw_")
        self._holds: set[Held] = set()
        self._told: dict[str, int] = {}
        """By budget what Redis was last told that this gateway has not read back."""
        self._known_since: float | None = None
        """Since when Redis has known what is held, as it last said."""
        self._renewing: asyncio.Task[None] | None = None
        self._grace_ms = 0
        if redis is not None:
            noticed_s = _CHECK_S + redis.longest_unnoticed_s
            self._grace_ms = round(1000 * (noticed_s + _TELL_S)) if grace_ms is None else grace_ms
            redis.probes.append(self._call("check", []))

    def start(self) -> None:
        """Renew what is held from now on."""
        if self._redis is not None:
            self._redis.when_back.append(self.renew)
            self._renewing = asyncio.create_task(self._keep_renewing())

    async def stop(self) -> None:
        """End what `start` began."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            self._renewing = None

    async def reserve(self, work_id: str, holders: Sequence[str], tokens: int, cost: int, now: float) -> Held | None:
        """Let a request in that can come to so much at most; None where no budget holds for it.

        Raises:
            BudgetSpentError: A hard limit is reached, or would be passed.
            LimitsAwayError: Redis is away and the configuration says `closed`.
        """
        standings = () if self._redis is None else tuple(self._book.standings(holders, now))
        if not standings:
            reservation = self._book.reserve(holders, tokens, cost, now)
            return None if reservation is None else Held(work_id, reservation)
        reservation = self._book.add(holders, tokens, cost)
        assert reservation is not None  # there is a budget
        held = Held(work_id, reservation, standings)
        try:
            await self._take(held)
        except BaseException as error:
            self._book.release(reservation)
            if not isinstance(error, LimitsAwayError) or self._when_away == "closed":
                raise
            return self._reserve_alone(work_id, holders, tokens, cost, now)
        self._holds.add(held)
        return held

    def _reserve_alone(self, work_id: str, holders: Sequence[str], tokens: int, cost: int, now: float) -> Held | None:
        """As `reserve`, by what this gateway knows itself. Raises BudgetSpentError."""
        assert self._redis is not None
        reservation = self._book.reserve(holders, tokens, cost, now)
        if reservation is None:  # the budgets have been read anew while Redis was asked
            return None
        held = Held(work_id, reservation, tuple(self._book.standings(holders, now)))
        self._holds.add(held)
        if held.standings and not self._redis.away:  # else it is told when Redis is back
            self._put([(standing, [work_id, held.amount(standing)]) for standing in held.standings])
        return held

    def release(self, held: Held) -> None:
        """The request is over; what it came to is in the book by now."""
        self._book.release(held.reservation)
        self._holds.discard(held)
        if held.standings:
            self._put([(standing, [held.work_id, 0]) for standing in self._as_of_now(held)])

    def read(self) -> None:
        """The book has been read anew: what it holds now need not be held in Redis beside it."""
        if self._redis is None:
            return
        standings = {each.rule.id: each for each in self._book.all_standings(time.time())}
        self._told = {budget_id: unread for budget_id, unread in self._told.items() if budget_id in standings}
        for budget_id, standing in standings.items():
            if standing.unread != self._told.get(budget_id, 0):
                self._put([(standing, [])])

    def renew(self) -> None:
        """Tell Redis all that is held: it still is."""
        standings = {each.rule.id: each for each in self._book.all_standings(time.time())}
        by_budget: defaultdict[str, list[str | int]] = defaultdict(list)
        for held in self._holds:
            for standing in held.standings:
                by_budget[standing.rule.id] += [held.work_id, held.amount(standing)]
        for budget_id, standing in standings.items():
            if standing.unread or budget_id in by_budget:
                self._put([(standing, by_budget[budget_id])])

    def _as_of_now(self, held: Held) -> Iterable[Standing]:
        known = {each.rule.id: each for each in self._book.standings(held.reservation.holders, time.time())}
        return [known.get(standing.rule.id, standing) for standing in held.standings]

    async def _take(self, held: Held) -> None:
        """Raises BudgetSpentError, LimitsAwayError."""
        assert self._redis is not None
        call = self._call("take", [(each, [held.work_id, held.amount(each)]) for each in held.standings])
        try:
            reply = await self._redis.ask(call)
        except (LimitsAwayError, asyncio.CancelledError):
            if call.reply is not None:  # it was sent, and may have been taken
                self._redis.send(self._call("put", [(each, [held.work_id, 0]) for each in held.standings]))
            raise
        taken, *why = msgspec.msgpack.decode(reply)
        if not taken and why == [0]:
            raise LimitsAwayError("Redis has started, and may not know yet what is held")
        if not taken:
            raise _refusal(held, *map(int, why))

    def _put(self, changes: Sequence[tuple[Standing, list[str | int]]]) -> None:
        """Set what holders hold, and beside it what this gateway has not read back."""
        assert self._redis is not None
        for standing, _ in changes:
            self._told[standing.rule.id] = standing.unread
            if not standing.unread:
                del self._told[standing.rule.id]
        self._redis.send(
            self._call("put", [(standing, [*held, self._me, standing.unread]) for standing, held in changes])
        )

    def _call(self, operation: str, asked: Sequence[tuple[Standing, Sequence[str | int]]]) -> Call:
        keys = ["kvarn:budgets:since"]
        argument: list[object] = [operation, self._lease_ms, _KEEP_MS, self._grace_ms, _CHECK_MS]
        for standing, held in asked:
            rule = standing.rule
            key = f"kvarn:budgets:{{{rule.organization_id}}}:{rule.id}"
            keys += [f"{key}:{standing.period}", key, f"{key}:leases"]
            argument.append([rule.hard_limit, standing.read, *held])
        return Call(self._script, keys, msgspec.msgpack.encode(argument))

    async def _keep_renewing(self) -> None:
        every_s = self._lease_ms / 1000 / _RENEWALS
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(min(_CHECK_S, every_s))
            if await self._has_forgotten() or time.monotonic() - renewed >= every_s:
                self.renew()
                renewed = time.monotonic()

    async def _has_forgotten(self) -> bool:
        """Whether Redis may have forgotten what this gateway holds since it was last asked."""
        assert self._redis is not None
        try:
            reply = await self._redis.ask(self._call("check", []))
        except LimitsAwayError:
            return False  # when it is back, it is told
        (since,) = msgspec.msgpack.decode(reply, type=tuple[float])
        before, self._known_since = self._known_since, since
        return before != since


def _refusal(held: Held, number: int, spent: int, ended: int) -> BudgetSpentError:
    """By the budget of that number, of which so much is spent and held by requests that have ended."""
    standing = held.standings[number - 1]
    limit, asked = standing.rule.hard_limit, held.amount(standing)
    assert limit is not None
    left = limit - max(spent, standing.read + standing.unread)
    return BudgetSpentError(standing.rule, left, asked, unentered=spent + ended + max(1, asked) > limit)
