"""Interface of the places where limits are counted: this process, the server's main process, or Redis."""

from __future__ import annotations

from typing import Protocol

from kvarn.limits.types import Decision, Reservation, Update


class CountsBackend(Protocol):
    """Counts limits and budgets by the rule of `Counts`.

    Calls take effect in the order in which they are made, with one exception: a later `reserve` may overtake calls of
    `update` where many of those wait to be sent, as in `RedisCounts`.
    """

    @property
    def away(self) -> bool: ...

    async def reserve(self, reservation: Reservation) -> Decision:
        """Admit a reservation if every limit has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: It does not answer. Should the reservation have been admitted all the same, it is given
                back.
        """
        ...

    def update(self, update: Update) -> None: ...
