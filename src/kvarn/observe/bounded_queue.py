"""A queue of what waits to be sent or written somewhere that may be away."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from prometheus_client import Counter

ItemT = TypeVar("ItemT")


class BoundedQueue(Generic[ItemT]):
    """Items in their order, `max_items` at most: of more, the oldest are dropped and counted."""

    def __init__(self, max_items: int, dropped: Counter) -> None:
        self._max_items = max_items
        self._dropped = dropped
        self._items: deque[ItemT] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: ItemT) -> None:
        if len(self._items) >= self._max_items:
            self._items.popleft()
            self._dropped.inc()
        self._items.append(item)

    def take(self, count: int) -> list[ItemT]:
        """Remove the oldest, so many at most."""
        return [self._items.popleft() for _ in range(min(count, len(self._items)))]

    def put_back(self, items: Sequence[ItemT]) -> None:
        """Add again what was taken last, as far as there is room."""
        lost = max(0, len(items) + len(self._items) - self._max_items)
        self._dropped.inc(lost)
        self._items.extendleft(reversed(items[lost:]))
