"""Orders for the tests of the limits."""

from __future__ import annotations

from itertools import count

from kvarn.limits.orders import Bound, Kind, Order

ORGANIZATION = "org-1"
_numbers = count()


def bound(kind: Kind, limit: int, holder: str = ORGANIZATION, model: str = "tiny") -> Bound:
    key = f"kvarn:limits:{{{ORGANIZATION}}}:{kind}:{holder}:{model}"
    return Bound(kind, "organisation", holder, model, limit, key)


def order(*bounds: Bound, tokens: int = 1, work_id: str | None = None) -> Order:
    """An order of its own, unless it is given the name of another."""
    return Order(work_id or f"use_{next(_numbers)}", ORGANIZATION, bounds, tokens)
