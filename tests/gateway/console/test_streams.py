"""The end of a stream that has none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from kvarn.gateway.console.streams import until_stop


async def test_a_stream_ends_when_the_server_stops_and_its_source_is_closed():
    stopping, closed = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    told = until_stop(stopping, source())
    assert await anext(told) == b"first"
    asyncio.get_running_loop().call_soon(stopping.set)
    assert [each async for each in told] == []
    assert closed.is_set()


async def test_a_stream_ends_with_its_source():
    async def source() -> AsyncGenerator[bytes, None]:
        for each in (b"a", b"b"):
            yield each

    assert [each async for each in until_stop(asyncio.Event(), source())] == [b"a", b"b"]
