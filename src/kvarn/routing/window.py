"""Counts over a sliding window of time, in constant memory; the clock is passed in."""

from __future__ import annotations

from collections import deque

_SLICES = 10  # a window moves in steps of a tenth of its length


class SlidingCounts:
    """Counts by kind (numbers from 0) over the last `window_s` seconds, exact to a tenth of it. Times must not go
    back."""

    def __init__(self, window_s: float, kinds: int) -> None:
        self._slice_s = window_s / _SLICES
        self._slices: deque[tuple[int, list[int]]] = deque()  # number of the slice, oldest first, and the counts in it
        self._totals = [0] * kinds

    def add(self, kind: int, now: float) -> None:
        self._drop_old(now)
        number = self._number(now)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, [0] * len(self._totals)))
        self._slices[-1][1][kind] += 1
        self._totals[kind] += 1

    def totals(self, now: float) -> list[int]:
        self._drop_old(now)
        return list(self._totals)

    def clear(self) -> None:
        self._slices.clear()
        self._totals = [0] * len(self._totals)

    def _number(self, now: float) -> int:
        return int(now // self._slice_s)

    def _drop_old(self, now: float) -> None:
        oldest = self._number(now) - _SLICES + 1
        while self._slices and self._slices[0][0] < oldest:
            for kind, count in enumerate(self._slices.popleft()[1]):
                self._totals[kind] -= count
