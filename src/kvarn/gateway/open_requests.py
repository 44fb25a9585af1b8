"""Requests that are being answered: the database and the ledger must outlive them."""

from __future__ import annotations

import asyncio
from types import TracebackType


class OpenRequests:
    """Counts requests from their headers to their last settlement: each is a `with` block."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._count += 1
        self._none.clear()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    def __len__(self) -> int:
        return self._count

    async def over(self, seconds: float) -> int:
        """Wait until there are none, but not longer than this; returns how many there still are."""
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            pass  # whoever asked says so
        return self._count
