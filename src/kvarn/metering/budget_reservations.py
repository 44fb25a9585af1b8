"""Budget reservations shared by all gateways of a Redis: together they never pass a hard limit.

Redis holds for each budget the use in the latest reading of the database, and by holder the amounts on top of it: for
each request in flight the most that it can use, and for each gateway the use by its ended requests that it has not read
back yet. So every use is counted at every moment: by its request, then by its gateway, then by the reading that lets
the gateway forget it; for a moment by two of them. A request is admitted while the sum stays within the limit. Held
amounts have a lease: those of a dead gateway expire.

A restarted Redis may have lost the held amounts. Each gateway sends all of its own when it notices, and every two
seconds.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.jobs.periodic import Periodic
from kvarn.limits.local import Timing
from kvarn.limits.scripts import Call, Script, ScriptRunner
from kvarn.limits.types import LimitsAwayError
from kvarn.metering.budgets import BudgetSpentError, BudgetStatus, BudgetTracker, ReservedAmount
from kvarn.store.ids import new_id
from kvarn.store.models import Budget

BUDGETS = Script("budgets", Path(__file__).with_name("budgets.lua").read_text(encoding="utf-8"))

_RENEWALS = 3
"""Renewals in the life of a lease, at least: two may be lost."""
_RENEW_S = 2.0
"""Pause between renewals, at most: for so long a Redis that starts anew may not know what is held."""
_KEEP_MS = 86_400_000
"""Time that Redis keeps a budget which no call names: longer than any reading of the database is old."""
_PROBE = BudgetStatus(
    Budget(id="probe", organization_id="kvarn", holder_id="kvarn", unit="tokens", period="total", hard_limit=0),
    "total",
    read=0,
    unread=0,
)


@dataclass(frozen=True, slots=True, eq=False)
class BudgetReservation:
    """Reservation of a request in flight."""

    work_id: str
    reservation: ReservedAmount
    statuses: tuple[BudgetStatus, ...] = ()
    """Status of each budget in Redis that applies to it."""

    def amount(self, status: BudgetStatus) -> int:
        """The most that it can use of a budget."""
        return status.rule.amount(self.reservation.tokens, self.reservation.cost)


class BudgetReservations:
    """Reserves for one gateway.

    Args:
        tracker: What the gateway knows itself.
        redis: Where gateways, or the processes of one, share what they reserve; None: they do not.
        when_away: While Redis is away, `open` decides by the tracker alone, `closed` refuses.
        lease_ms: How long what is held lasts unless it is renewed.
    """

    def __init__(
        self,
        tracker: BudgetTracker,
        redis: ScriptRunner | None = None,
        when_away: Literal["open", "closed"] = "open",
        lease_ms: int = Timing().lease_ms,
    ) -> None:
        self._tracker = tracker
        self._redis = redis
        self._when_away = when_away
        self._lease_ms = lease_ms
        self._me = new_id("gw_")
        self._holds: set[BudgetReservation] = set()
        self._reported: dict[str, int] = {}
        """By budget what Redis was last told that this gateway has not read back."""
        self._renewing = Periodic(
            "renewals of budget reservations", self._renew, min(_RENEW_S, lease_ms / 1000 / _RENEWALS)
        )
        if redis is not None:
            redis.probes.append(self._call("put", [(_PROBE, [])]))

    def start(self) -> None:
        """Renew what is held from now on."""
        if self._redis is not None:
            self._redis.when_back.append(self._tell_all)
            self._renewing.start()

    async def stop(self) -> None:
        """End what `start` began."""
        await self._renewing.stop()

    async def reserve(
        self, work_id: str, holders: Sequence[str], tokens: int, cost: int, now: float
    ) -> BudgetReservation | None:
        """Let a request in that can come to so much at most; None where no budget holds for it.

        Raises:
            BudgetSpentError: A hard limit is reached, or would be passed.
            LimitsAwayError: Redis is away and the configuration says `closed`.
        """
        statuses = () if self._redis is None else tuple(self._tracker.statuses(holders, now))
        if not statuses:
            reservation = self._tracker.reserve(holders, tokens, cost, now)
            return None if reservation is None else BudgetReservation(work_id, reservation)
        reservation = self._tracker.add(holders, tokens, cost)
        assert reservation is not None  # there is a budget
        held = BudgetReservation(work_id, reservation, statuses)
        try:
            await self._take(held)
        except BaseException as error:
            self._tracker.release(reservation)
            if not isinstance(error, LimitsAwayError) or self._when_away == "closed":
                raise
            return self._reserve_alone(work_id, holders, tokens, cost, now)
        self._holds.add(held)
        return held

    def _reserve_alone(
        self, work_id: str, holders: Sequence[str], tokens: int, cost: int, now: float
    ) -> BudgetReservation | None:
        """Reserve by this gateway's own counts alone. Raises BudgetSpentError."""
        assert self._redis is not None
        reservation = self._tracker.reserve(holders, tokens, cost, now)
        if reservation is None:  # the budgets have been read anew while Redis was asked
            return None
        held = BudgetReservation(work_id, reservation, tuple(self._tracker.statuses(holders, now)))
        self._holds.add(held)
        if held.statuses and not self._redis.away:  # else it is told when Redis is back
            self._put([(status, [work_id, held.amount(status)]) for status in held.statuses])
        return held

    def release(self, held: BudgetReservation) -> None:
        """The request is over; what it came to is in the tracker by now."""
        self._tracker.release(held.reservation)
        self._holds.discard(held)
        if held.statuses:
            self._put([(status, [held.work_id, 0]) for status in self._as_of_now(held)])

    def read(self) -> None:
        """The tracker has been read anew: what it holds now need not be held in Redis beside it."""
        if self._redis is None:
            return
        statuses = {each.rule.id: each for each in self._tracker.all_statuses(SYSTEM_CLOCK.time())}
        self._reported = {budget_id: unread for budget_id, unread in self._reported.items() if budget_id in statuses}
        for budget_id, status in statuses.items():
            if status.unread != self._reported.get(budget_id, 0):
                self._put([(status, [])])

    def _renew(self) -> None:
        if self._redis is not None and not self._redis.away:
            self._tell_all()

    def _tell_all(self) -> None:
        """Tell Redis all that is held: it still is."""
        statuses = {each.rule.id: each for each in self._tracker.all_statuses(SYSTEM_CLOCK.time())}
        by_budget: defaultdict[str, list[str | int]] = defaultdict(list)
        for held in self._holds:
            for status in held.statuses:
                by_budget[status.rule.id] += [held.work_id, held.amount(status)]
        for budget_id, status in statuses.items():
            if status.unread or budget_id in by_budget:
                self._put([(status, by_budget[budget_id])])

    def _as_of_now(self, held: BudgetReservation) -> Iterable[BudgetStatus]:
        known = {each.rule.id: each for each in self._tracker.statuses(held.reservation.holders, SYSTEM_CLOCK.time())}
        return [known.get(status.rule.id, status) for status in held.statuses]

    async def _take(self, held: BudgetReservation) -> None:
        """Raises BudgetSpentError, LimitsAwayError."""
        assert self._redis is not None
        call = self._call("take", [(each, [held.work_id, held.amount(each)]) for each in held.statuses])
        try:
            reply = await self._redis.ask(call)
        except (LimitsAwayError, asyncio.CancelledError):
            if call.reply is not None:  # it was sent, and may have been taken
                self._redis.send(self._call("put", [(each, [held.work_id, 0]) for each in held.statuses]))
            raise
        taken, *why = msgspec.msgpack.decode(reply)
        if not taken:
            raise _refusal(held, *map(int, why))

    def _put(self, changes: Sequence[tuple[BudgetStatus, list[str | int]]]) -> None:
        """Set what holders hold, and beside it what this gateway has not read back."""
        assert self._redis is not None
        for status, _ in changes:
            self._reported[status.rule.id] = status.unread
            if not status.unread:
                del self._reported[status.rule.id]
        self._redis.send(self._call("put", [(status, [*held, self._me, status.unread]) for status, held in changes]))

    def _call(self, operation: str, requested: Sequence[tuple[BudgetStatus, Sequence[str | int]]]) -> Call:
        keys: list[str] = []
        argument: list[object] = [operation, self._lease_ms, _KEEP_MS]
        for status, held in requested:
            rule = status.rule
            key = f"kvarn:budgets:{{{rule.organization_id}}}:{rule.id}"
            keys += [f"{key}:{status.period}", key, f"{key}:leases"]
            argument.append([rule.hard_limit, status.read, *held])
        return Call(BUDGETS, keys, msgspec.msgpack.encode(argument))


def _refusal(held: BudgetReservation, number: int, spent: int) -> BudgetSpentError:
    """By the budget of that number, of which so much is spent."""
    status = held.statuses[number - 1]
    limit, requested = status.rule.hard_limit, held.amount(status)
    assert limit is not None
    left = limit - max(spent, status.read + status.unread)
    return BudgetSpentError(status.rule, left, requested)
