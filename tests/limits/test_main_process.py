"""The counts of a main process, as the other gateway processes of its server reach them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from kvarn.fleet.channel import Channel
from kvarn.fleet.shared_counts import RemoteCounts, counts_handlers
from kvarn.limits.counts import Counts
from kvarn.limits.types import Kind, LimitsAwayError
from limit_reservations import make_limit, make_reservation


@asynccontextmanager
async def main_process() -> AsyncGenerator[tuple[Counts, RemoteCounts, Channel], None]:
    """The counts of a main process, and another process' way to them."""
    ends, counts = socket.socketpair(), Counts()
    main = await Channel.open(ends[0], counts_handlers(counts))
    other = await Channel.open(ends[1], {})
    yield counts, RemoteCounts(other), main
    for channel in (main, other):
        channel.close()
        await channel.closed.wait()


async def test_a_process_that_stops_waiting_for_the_main_process_holds_nothing() -> None:
    places = make_limit(Kind.CONCURRENCY, 1)
    async with main_process() as (_, remote, _):
        asking = asyncio.create_task(remote.reserve(make_reservation(places)))
        await asyncio.sleep(0)
        asking.cancel()
        assert await asyncio.gather(asking, return_exceptions=True)
        assert (await remote.reserve(make_reservation(places))).admitted


async def test_without_the_main_process_nothing_is_admitted() -> None:
    async with main_process() as (_, remote, main):
        main.close()
        with pytest.raises(LimitsAwayError):
            await remote.reserve(make_reservation(make_limit(Kind.TOKENS, 10)))
