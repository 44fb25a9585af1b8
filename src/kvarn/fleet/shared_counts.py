"""Counts shared by the gateway processes of one server: kept in the main process, which the others call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from kvarn.fleet.channel import Channel, ChannelClosedError, Handlers
from kvarn.limits.backend import CountsBackend
from kvarn.limits.counts import Counts
from kvarn.limits.types import Decision, LimitsAwayError, Reservation, Update
from kvarn.observe.history import HistorySource


@dataclass(frozen=True, slots=True)
class SharedState:
    counts: CountsBackend
    """Limits and budgets, in the main process."""
    metrics: Callable[[], Awaitable[CollectorRegistry]]
    is_main: bool
    """This process supervises the engines and shows their metrics."""
    history: HistorySource  # of the whole server


def counts_handlers(counts: Counts) -> Handlers:
    """Handlers of the calls of other processes."""
    return {Reservation: counts.decide, Update: counts.update}


class RemoteCounts:
    """A `CountsBackend` in the main process."""

    away = False

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def reserve(self, reservation: Reservation) -> Decision:
        """Have the main process decide. Raises `LimitsAwayError` where that is gone; this one ends too."""
        try:
            return await self._channel.call(reservation, Decision)
        except asyncio.CancelledError:  # it may have been admitted
            self.update(Update(reservation, whole=True))
            raise
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None

    def update(self, update: Update) -> None:
        """Renew or settle a reservation there."""
        self._channel.send(update)
