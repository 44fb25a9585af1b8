"""Recurrent states of the slots, and the snapshots of them, in one cache: slots first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvarn.engine.plan import NO_SNAPSHOT, NewSequence, Row
from kvarn.kernels.batch import StateCache
from kvarn.worker.errors import PlanError


class SlotStates:
    """Applies plans to a cache of states: places for `num_slots` slots, then for snapshots."""

    def __init__(self, cache: StateCache, num_slots: int) -> None:
        self._cache = cache
        self._num_slots = num_slots

    def admit(self, new: NewSequence) -> None:
        """Set the state of the slot that a sequence enters. Raises PlanError for an unknown snapshot."""
        if new.snapshot == NO_SNAPSHOT:
            self._cache.clear(new.slot)
        else:
            self._cache.copy(self._place(new.snapshot), new.slot)

    def saves(self, rows: Sequence[Row]) -> npt.NDArray[np.int64]:
        """`StateBatch.saves` of these rows. Raises PlanError as `admit`."""
        saves, end = np.full(sum(len(row.token_ids) for row in rows), -1, dtype=np.int64), 0
        for row in rows:
            for save in row.state_saves:
                saves[end + save.num_tokens - 1] = self._place(save.snapshot)
            end += len(row.token_ids)
        return saves

    def _place(self, snapshot: int) -> int:
        place = self._num_slots + snapshot
        if not self._num_slots <= place < self._cache.num_places:
            raise PlanError(f"snapshot {snapshot} of states is not one of {self._cache.num_places - self._num_slots}")
        return place
