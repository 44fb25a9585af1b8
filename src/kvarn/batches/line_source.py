"""The requests of a batch that ask for one model and have no answer yet, found in the database a few at a time."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection

from kvarn.store.engine import Store
from kvarn.store.repositories.batches.lines import FIRST, OpenLine, open_lines

_READ_AT_ONCE = 64


class LineSource:
    """Gives each open line that asks for a model, in the file's order (of several models one after the other). Each
    source of a batch has a place of its own in the file, so what one of them waits for holds up none of the others, and
    no line is read to be passed over. What a line asks is not read here: a source that stands still holds a few
    kilobytes.

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

    @property
    def exhausted(self) -> bool:
        """Whether every line has been given, and none was put back."""
        return self._read_all and not self._next

    async def take(self) -> OpenLine | None:
        """The next line; None where there is none. Raises `StoreAwayError` where the database does not answer."""
        if len(self._next) < 2 and not self._read_all:  # before the last is given: whoever has it knows that it was
            found = await open_lines(
                self._store, self._batch_id, self._after, _READ_AT_ONCE, model=self._model, besides=self._besides
            )
            self._read_all = len(found) < _READ_AT_ONCE
            if found:
                self._after = found[-1]
                self._next.extend(found)
        return self._next.popleft() if self._next else None

    def put_back(self, line: OpenLine) -> None:
        """A line that was given is still open: it comes again, in its place."""
        insort(self._next, line)
