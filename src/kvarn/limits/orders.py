"""The words of the limits: what is bounded, what a piece of work orders, and what the counts say to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

NEVER = -1
"""Wait of an order that is larger than the limit itself."""

MAX_NUMBER = 10**12
"""Larger limits and orders count as this: sums stay whole numbers in Lua, which has only doubles."""


class Kind(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    """Requests a minute."""
    TOKENS = "tokens"
    """Prompt and output tokens a minute."""
    CONCURRENCY = "concurrency"
    """Requests running at once."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One number that one holder's requests to one model stay below."""

    kind: Kind
    scope: str
    """What the holder is, in words: `organisation`, `project` or `API key`."""
    holder: str
    """Id of the organisation, project or key."""
    model: str
    limit: int
    key: str
    """Name of its count. All counts of an organisation have `{organisation}` in it, so that a Redis cluster keeps them
    on one node."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a piece of work asks of every bound that it is under: all of it, or nothing."""

    work_id: str
    """Nobody else's: the same order is never taken twice."""
    organization_id: str
    bounds: tuple[Bound, ...]
    tokens: int
    """Prompt tokens and reserved output tokens."""

    def amount(self, bound: Bound) -> int:
        """What it takes of a bound."""
        return self.tokens if bound.kind is Kind.TOKENS else 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What a count says once an order is decided."""

    used: int
    """With the order, where it was taken in. More than the limit where requests used more than they had reserved."""
    wait_ms: int
    """Until the order would be taken in if nobody else came: 0 where this bound has room for it, `NEVER` where it asks
    for more than the limit. Of a running request nobody knows the end: for them it is a guess."""
    reset_ms: int
    """Until nothing of what was counted counts any more. 0 for running requests."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an order was taken in, with a reading of each of its bounds."""

    order: Order
    admitted: bool
    readings: tuple[Reading, ...]

    def items(self) -> Iterator[tuple[Bound, Reading]]:
        """Each bound with its reading."""
        return zip(self.order.bounds, self.readings, strict=True)


class Keeper(Protocol):
    """Keeps counts and decides by them."""

    async def take(self, order: Order) -> Verdict:
        """Take an order in, if every bound has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: Nobody can say.
        """
        ...

    def renew(self, order: Order, used: int) -> None:
        """The work still runs and has used so many tokens: what is over its reservation is counted now."""
        ...

    def settle(self, order: Order, used: int, *, whole: bool = False) -> None:
        """The work is over and has used so many tokens; `whole` gives the request back too. Only once has an effect."""
        ...


class ServerCounts(Keeper, Protocol):
    """Counts of one server: of its process, or of all its gateway processes."""

    def sweep(self) -> None:
        """Drop what no longer counts."""
        ...


class LimitsAwayError(Exception):
    """Redis does not answer: nobody knows what other gateways have counted."""
