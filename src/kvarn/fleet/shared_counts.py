"""Counts shared by the gateway processes of one server: kept in the main process, which the others call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry

from kvarn.fleet.channel import Channel, ChannelClosedError, Handler
from kvarn.limits.backend import CountsBackend
from kvarn.limits.counts import Counts
from kvarn.limits.types import Decision, LimitsAwayError, Reservation, Update

_RESERVE, _UPDATE = "limits.reserve", "limits.update"
_encode = msgspec.msgpack.Encoder().encode
_reservations = msgspec.msgpack.Decoder(Reservation)
_updates = msgspec.msgpack.Decoder(Update)
_decisions = msgspec.msgpack.Decoder(Decision)


@dataclass(frozen=True, slots=True)
class SharedState:
    """Parts that a gateway process shares with the others of its server."""

    counts: CountsBackend
    """Limits and budgets, in the main process."""
    metrics: Callable[[], Awaitable[CollectorRegistry]]
    is_main: bool
    """This process supervises the engines and shows their metrics."""


def counts_handlers(counts: Counts) -> dict[str, Handler]:
    """Handlers of the calls of other processes."""
    return {
        _RESERVE: lambda body: _encode(counts.decide(_reservations.decode(body))),
        _UPDATE: lambda body: counts.update(_updates.decode(body)),
    }


class RemoteCounts:
    """A `CountsBackend` in the main process."""

    away = False

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def reserve(self, reservation: Reservation) -> Decision:
        """Have the main process decide.

        Raises:
            LimitsAwayError: The main process is gone; this one ends too.
        """
        try:
            return _decisions.decode(await self._channel.call(_RESERVE, _encode(reservation)))
        except asyncio.CancelledError:  # it may have been admitted
            self.update(Update(reservation, whole=True))
            raise
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None

    def update(self, update: Update) -> None:
        """Renew or settle a reservation there."""
        self._channel.send(_UPDATE, _encode(update))
