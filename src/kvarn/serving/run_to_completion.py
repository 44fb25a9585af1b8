"""Doing something to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def to_the_end(work: Awaitable[ResultT]) -> ResultT:
    """Await something that is done to its end even where the caller is cancelled meanwhile, be it more than once."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({doing})
        raise
