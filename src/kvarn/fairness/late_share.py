"""The part of a queue's service that goes to items which have missed their deadlines."""

from __future__ import annotations


class LateShare:
    """Accounts for the least share, by cost, of all that is started which late items get."""

    SHARE = 1 / 8
    MAX_CREDIT = 8
    """Items whose cost they may catch up with, where others of a better tier were served all the time."""
    __slots__ = ("_credit", "_turn_at")

    def __init__(self) -> None:
        self._credit = self._turn_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is a late item's turn."""
        return 0 < self._turn_at <= self._credit

    def started(self, cost: float, *, late: bool) -> None:
        """An item was started while others, late or not, waited."""
        if late:
            self._credit -= (1 - self.SHARE) * cost
        else:
            more = min(self._credit + self.SHARE * cost, self.MAX_CREDIT * cost)
            self._credit = max(self._credit, more)  # a small item takes none away
        self._turn_at = (1 - self.SHARE) * cost
