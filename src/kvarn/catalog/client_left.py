"""Waiting for something as long as the client of a request is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

ResultT = TypeVar("ResultT")
ClientLeft = Callable[[], Awaitable[None]] | None
"""Returns once the client has left; None: unknown."""


async def until_client_leaves(result: asyncio.Future[ResultT], client_left: ClientLeft) -> ResultT:
    """The result of a future, which goes on where this is cancelled or the client leaves (`ClientDisconnect`)."""
    waited: set[asyncio.Future[Any]] = {result}
    if client_left is not None:
        waited.add(asyncio.ensure_future(client_left()))
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        for gone in waited - {result}:
            gone.cancel()


async def cancel_with_client(work: Coroutine[Any, Any, ResultT], client_left: ClientLeft) -> ResultT:
    """Await work; cancel it if the caller is cancelled or the client leaves. Raises as `until_client_leaves` does."""
    task = asyncio.create_task(work)
    try:
        return await until_client_leaves(task, client_left)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
