"""The sequences that run: their slots, and the steps in flight in which they have rows."""

from __future__ import annotations

import heapq
from collections import deque

from kvarn.engine.errors import IntegrityError
from kvarn.engine.request import Sequence
from kvarn.engine.step import SubmittedStep


class SlotAllocator:
    """Slots by which the executor knows running sequences: 0 to `num_slots - 1`.

    The lowest free one goes first, so that the executor's batch stays dense.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self._released: list[int] = []
        self._num_slots = num_slots

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        """Free a slot; the next plan tells the executor."""
        heapq.heappush(self._free, slot)
        self._released.append(slot)

    def drain_released(self) -> list[int]:
        released, self._released = self._released, []
        return released

    def check_integrity(self, taken: list[int]) -> None:
        if sorted(self._free + taken) != list(range(self._num_slots)):
            raise IntegrityError(f"slots {sorted(taken)} are taken and {sorted(self._free)} are free")


class RunningSequences:
    """Those that have a slot, in the order in which they got it."""

    def __init__(self, num_slots: int) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.slots = SlotAllocator(num_slots)
        self.in_flight: deque[SubmittedStep] = deque()
        """Steps planned whose results are not there, the oldest first."""

    def enter(self, sequence: Sequence) -> None:
        sequence.slot = self.slots.take()
        self.sequences[sequence] = None

    def leave(self, sequence: Sequence, now: float) -> None:
        """Take a sequence's slot; what steps in flight bring for it is dropped."""
        assert sequence.slot is not None, "only a running sequence has a slot"
        self.slots.release(sequence.slot)
        sequence.slot = None
        sequence.request.turn.stop(now)
        del self.sequences[sequence]
        for step in self.in_flight:
            step.discarded.add(sequence)

    def check_integrity(self) -> None:
        running = list(self.sequences)
        self.slots.check_integrity([sequence.slot for sequence in running if sequence.slot is not None])
        if any(sequence.slot is None or sequence.finish_reason is not None for sequence in running):
            raise IntegrityError("a sequence without a slot, or at its end, still runs")
