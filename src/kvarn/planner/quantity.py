"""A number of a plan with what it follows from."""

from __future__ import annotations

import msgspec


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """A value, and how it came about."""

    value: float
    unit: str = ""
    formula: str = ""
    """The computation with its numbers, as text."""
    assumption: str = ""
    """Anything taken for granted; empty: nothing but the inputs."""
    error: float | None = None
    """Relative error to expect, either way; 0: exact; None: not known."""
    source: str = ""
    """Origin of a number that was looked up or measured."""

    @property
    def low(self) -> float:
        return self.value * max(0.0, 1 - (self.error or 0.0))

    @property
    def high(self) -> float:
        return self.value * (1 + (self.error or 0.0))


class Part(msgspec.Struct, frozen=True):
    name: str
    quantity: Quantity
