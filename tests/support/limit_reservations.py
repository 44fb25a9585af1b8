"""Reservations for the tests of the limits."""

from __future__ import annotations

from itertools import count

from kvarn.limits.types import Kind, Limit, Reservation

ORGANIZATION = "org-1"
_numbers = count()


def make_limit(kind: Kind, maximum: int, holder: str = ORGANIZATION, model: str = "tiny") -> Limit:
    key = f"kvarn:limits:{{{ORGANIZATION}}}:{kind}:{holder}:{model}"
    return Limit(kind, "organisation", holder, model, maximum, key)


def make_reservation(*limits: Limit, tokens: int = 1, work_id: str | None = None) -> Reservation:
    """A reservation of its own, unless it is given the name of another."""
    return Reservation(work_id or f"use_{next(_numbers)}", ORGANIZATION, limits, tokens)
