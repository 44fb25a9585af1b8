"""Limits, reservations, and the places that count them, for tests."""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol

import msgspec
import redis

from kvarn.limits.counts import Counts, Timing
from kvarn.limits.script import SCRIPT, script_input
from kvarn.limits.types import Decision, Kind, Limit, Reservation, Spending, Update

ORGANIZATION = "org-1"
_numbers = count()


def make_limit(kind: Kind, maximum: int, holder: str = ORGANIZATION, model: str = "tiny") -> Limit:
    key = f"kvarn:limits:{{{ORGANIZATION}}}:{kind}:{holder}:{model}"
    return Limit(kind, key, maximum, scope="organisation", holder=holder, model=model)


def make_budget_limit(
    maximum: int,
    amount: int,
    *,
    spent: int = 0,
    unread: int = 0,
    gateway: str = "gw_1",
    period: str = "2026-11-21",
    name: str = "budget-1",
) -> Limit:
    spending = Spending(period, spent, gateway, unread)
    return Limit(Kind.BUDGET, f"kvarn:budgets:{{{ORGANIZATION}}}:{name}", maximum, amount, spending=spending)


def make_reservation(*limits: Limit, tokens: int = 1, work_id: str | None = None) -> Reservation:
    """A reservation of its own, unless it is given the name of another."""
    return Reservation(work_id or f"use_{next(_numbers)}", ORGANIZATION, limits, tokens)


class Place(Protocol):
    """A place that counts, on a clock of the test's."""

    def take(self, reservation: Reservation, now_ms: int) -> Decision: ...

    def update(self, update: Update, now_ms: int) -> None: ...


class InProcess:
    """Direct calls of the rule in Python."""

    def __init__(self, timing: Timing) -> None:
        self.now_ms = 0
        self.counts = Counts(timing, lambda: self.now_ms)

    def take(self, reservation: Reservation, now_ms: int) -> Decision:
        self.now_ms = now_ms
        return self.counts.decide(reservation)

    def update(self, update: Update, now_ms: int) -> None:
        self.now_ms = now_ms
        self.counts.update(update)


class InMainProcess(InProcess):
    """The rule in Python, with all that other processes send it and get from it encoded."""

    def take(self, reservation: Reservation, now_ms: int) -> Decision:
        return _sent(super().take(_sent(reservation), now_ms))

    def update(self, update: Update, now_ms: int) -> None:
        super().update(_sent(update), now_ms)


class InRedis:
    """The rule in Lua, in an emptied Redis."""

    def __init__(self, timing: Timing, client: redis.Redis) -> None:
        self._timing = timing
        self._client = client
        on_test_clock = SCRIPT.replace('redis.call("TIME")', 'redis.call("LRANGE", "clock", 0, 1)')
        assert on_test_clock != SCRIPT
        self._script = client.register_script(on_test_clock)
        client.flushall()

    def take(self, reservation: Reservation, now_ms: int) -> Decision:
        return msgspec.msgpack.decode(self._run("reserve", Update(reservation), now_ms), type=Decision)

    def update(self, update: Update, now_ms: int) -> None:
        self._run("settle" if update.ended else "renew", update, now_ms)

    def _run(self, operation: str, update: Update, now_ms: int) -> bytes:
        self._client.delete("clock")
        self._client.rpush("clock", now_ms // 1000, now_ms % 1000 * 1000)
        keys, argument = script_input(operation, update, self._timing)
        reply: bytes = self._script(keys=keys, args=[argument])
        return reply


def _sent(value: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))
