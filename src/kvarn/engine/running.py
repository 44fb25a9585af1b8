"""The sequences that run: their slots, and the steps in flight in which they have rows."""

from __future__ import annotations

import heapq
from collections import deque

from kvarn.engine.errors import IntegrityError
from kvarn.engine.request import Sequence
from kvarn.engine.step import SubmittedStep


class RunningSequences:
    """Those that have a slot, in the order in which they got it.

    The executor knows them by their slots, 0 to `num_slots - 1`. The lowest free one is taken first, so that the
    executor's batch stays dense.
    """

    def __init__(self, num_slots: int) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.in_flight: deque[SubmittedStep] = deque()
        """Steps planned whose results are not there, the oldest first."""
        self._num_slots = num_slots
        self._free = list(range(num_slots))
        self._released: list[int] = []

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free)

    def enter(self, sequence: Sequence) -> None:
        sequence.slot = heapq.heappop(self._free)
        self.sequences[sequence] = None

    def leave(self, sequence: Sequence, now: float) -> None:
        """Free a sequence's slot; what steps in flight bring for it is dropped. The next plan tells the executor."""
        assert sequence.slot is not None, "only a running sequence has a slot"
        heapq.heappush(self._free, sequence.slot)
        self._released.append(sequence.slot)
        sequence.slot = None
        sequence.request.turn.stop(now)
        del self.sequences[sequence]
        for step in self.in_flight:
            step.discarded.add(sequence)

    def drain_released(self) -> list[int]:
        """Slots freed since the last call, in order."""
        released, self._released = self._released, []
        return released

    def check_integrity(self) -> None:
        taken = [sequence.slot for sequence in self.sequences if sequence.slot is not None]
        if sorted(self._free + taken) != list(range(self._num_slots)):
            raise IntegrityError(f"slots {sorted(taken)} are taken and {sorted(self._free)} are free")
        if len(taken) < len(self.sequences) or any(sequence.finish_reason for sequence in self.sequences):
            raise IntegrityError("a sequence without a slot, or at its end, still runs")
