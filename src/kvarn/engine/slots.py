"""Slots: the small integers by which the executor knows running sequences."""

from __future__ import annotations

import heapq

from kvarn.engine.errors import IntegrityError


class SlotAllocator:
    """Hands out 0 to `num_slots - 1`, the lowest free one first, so that the executor's batch stays dense."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self._released: list[int] = []
        self._num_slots = num_slots

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot."""
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        """Free a slot; the next plan tells the executor."""
        heapq.heappush(self._free, slot)
        self._released.append(slot)

    def drain_released(self) -> list[int]:
        """Slots released since the last call, in order."""
        released, self._released = self._released, []
        return released

    def check_integrity(self, taken: list[int]) -> None:
        """Compare with the slots that running sequences say they have. Raises `IntegrityError`."""
        if sorted(self._free + taken) != list(range(self._num_slots)):
            raise IntegrityError(f"slots {sorted(taken)} are taken and {sorted(self._free)} are free")
