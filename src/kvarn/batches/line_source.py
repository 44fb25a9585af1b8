"""The requests of a batch that ask for one model and have no answer yet, found in the database a few at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from kvarn.store.engine import Store
from kvarn.store.repositories.batches.lines import FIRST, OpenLine, open_lines

_READ_AT_ONCE = 64


class LineSource:
    """Gives the number of each open line that asks for a model once, in the file's order (of several models one after
    the other). No line is read to be passed over, and what a line asks is not read here.

    Args:
        store: The database.
        batch_id: The batch.
        model: Only lines that ask for it; None: for whatever.
        besides: No lines that ask for one of these.
    """

    def __init__(self, store: Store, batch_id: str, model: str | None = None, besides: Collection[str] = ()) -> None:
        self._store = store
        self._batch_id = batch_id
        self._model = model
        self._besides = besides
        self._next: deque[OpenLine] = deque()
        self._after = FIRST
        self._read_all = False
        self._reading = asyncio.Lock()

    async def take(self) -> int | None:
        """The next line; None where there is none. Raises `StoreAwayError` where the database does not answer."""
        async with self._reading:
            if not self._next and not self._read_all:
                found = await open_lines(
                    self._store, self._batch_id, self._after, _READ_AT_ONCE, model=self._model, besides=self._besides
                )
                self._read_all = len(found) < _READ_AT_ONCE
                self._next.extend(found)
            if not self._next:
                return None
            self._after = self._next.popleft()
            return self._after.line
