"""Limits, reservations of requests under them, and decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class Limit:
    """One number that the requests of one holder to one model stay below."""

    kind: Kind
    scope: str
    """Kind of holder in words: `organisation`, `project` or `API key`."""
    holder: str
    """Id of the organisation, project or key."""
    model: str
    maximum: int
    key: str
    """Name of its count. All counts of an organisation have `{organisation}` in it, so that a Redis cluster keeps them
    on one node."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Amount that a request takes of every limit that it is under: all of it, or nothing."""

    work_id: str
    """Nobody else's: the same reservation is never made twice."""
    organization_id: str
    limits: tuple[Limit, ...]
    tokens: int
    """Prompt tokens and expected output tokens."""

    def amount(self, limit: Limit) -> int:
        """The amount that it takes of a limit."""
        return self.tokens if limit.kind is Kind.TOKENS else 1


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a limit after a reservation was decided."""

    used: int
    """With the reservation, where it was admitted. More than the maximum where requests used more than they had
    reserved."""
    wait_ms: int
    """Until the reservation would be admitted if nobody else came: 0 where there is room, `NEVER` where it is larger
    than the limit. Of a running request nobody knows the end: for them it is a guess."""
    reset_ms: int
    """Until nothing of what was counted counts any more. 0 for running requests."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a reservation was admitted, with the usage of each of its limits."""

    reservation: Reservation
    admitted: bool
    usages: tuple[Usage, ...]

    def items(self) -> Iterator[tuple[Limit, Usage]]:
        """Each limit with its usage."""
        return zip(self.reservation.limits, self.usages, strict=True)


class LimitsAwayError(Exception):
    """Redis does not answer: what other gateways have counted is not known."""
