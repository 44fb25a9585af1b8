"""Limits, reservations of requests under them, and decisions.

A budget is a limit whose window is a day, a month or all time: its count begins with what the ledger has spent.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

NEVER = -1
"""Wait of a reservation that is larger than the limit itself."""

MAX_NUMBER = 10**12
"""Larger limits and reservations count as this: sums stay whole numbers in Lua, which has only doubles."""


class Kind(StrEnum):
    """Measure that a limit counts."""

    REQUESTS = "requests"
    """Requests a minute."""
    TOKENS = "tokens"
    """Prompt and output tokens a minute."""
    CONCURRENCY = "concurrency"
    """Requests running at once."""
    BUDGET = "budget"
    """Tokens or money spent in a period, with the most that running requests can add to it."""

    @property
    def is_window(self) -> bool:
        """Whether it counts the last minute; the others count what running requests hold."""
        return self in (Kind.REQUESTS, Kind.TOKENS)


class Spending(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Spent part of a budget, as one gateway knows it."""

    period: str
    """Name of the day, month or total."""
    spent: int
    """In that period, in the gateway's last reading of the ledger."""
    gateway: str
    unread: int
    """Used by the gateway's ended requests since then: updates have the gateway hold it until it has read it."""


class Limit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One number that the requests of one holder stay below."""

    kind: Kind
    key: str
    """Name of its count. All counts of an organisation have `{organisation}` in it, so that a Redis cluster keeps them
    on one node."""
    maximum: int
    amount: int = 1
    """Amount that a request takes of it; of tokens a minute, `Reservation.tokens` instead."""
    scope: str = ""
    """Kind of holder in words: `organisation`, `project` or `API key`."""
    holder: str = ""
    """Id of the organisation, project or key."""
    model: str = ""
    spending: Spending | None = None
    """For a budget."""


class Reservation(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Amount that a request takes of every limit that it is under: all of it, or nothing."""

    work_id: str
    """Unique: the same reservation is never made twice."""
    organization_id: str
    limits: tuple[Limit, ...]
    tokens: int
    """Prompt tokens and expected output tokens."""

    def amount(self, limit: Limit) -> int:
        return self.tokens if limit.kind is Kind.TOKENS else limit.amount


class Update(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """News of a reservation's request. Says what was used in all, not what to add: repeated, it has no effect."""

    reservation: Reservation
    used: int = 0
    """Tokens so far."""
    ended: bool = True
    """Settle the reservation; False: renew its leases, and charge at once what is over the reservation."""
    whole: bool = False
    """Give the request back too, of requests a minute."""


class Usage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Use of a limit after a reservation was decided."""

    used: int
    """With the reservation, where it was admitted. More than the maximum where requests used more than they had
    reserved. Of a budget: spent for certain, without what running requests may come to."""
    wait_ms: int
    """Until the reservation would be admitted if no other request came: 0 where there is room, `NEVER` where it is
    larger than the limit. The end of running requests is not known: for them it is a guess."""
    reset_ms: int
    """Until nothing that was counted counts any more; 0 for running requests and budgets."""


class Decision(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Whether a reservation was admitted, with the usage of each of its limits."""

    admitted: bool
    usages: tuple[Usage, ...]


class LimitsAwayError(Exception):
    """The counts cannot be reached: what other gateways have counted is not known."""
