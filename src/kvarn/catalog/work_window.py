"""Rates of an engine's work over the last seconds, from its totals."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from kvarn.wire.messages import EngineStats

WINDOW_S = 10.0
_KEPT = 64
_APART_S = 1.0


class WorkRates(NamedTuple):
    """NaN where nothing was done, or where what is asked for is not known yet."""

    intensity: float = math.nan
    """Operations for each byte read."""
    read_bytes_per_s: float = math.nan
    finished_per_s: float = math.nan


class _Sample(NamedTuple):
    at_s: float
    read_bytes: int
    operations: int
    finished: int


class WorkWindow:
    """Rates of one engine over at least `WINDOW_S` seconds, once so many have passed. Each reading adds a sample: the
    server's history reads every 10 s (`kvarn.observe.history`), and each scrape does."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)

    def rates(self, stats: EngineStats, now: float) -> WorkRates:
        """Rates up to now."""
        samples, work = self._samples, stats.work
        latest = _Sample(now, work.read_bytes_total, work.operations_total, stats.finished_total)
        if samples and (latest.finished < samples[-1].finished or latest.read_bytes < samples[-1].read_bytes):
            samples.clear()  # another engine process
        while len(samples) > 1 and now - samples[1].at_s >= WINDOW_S:
            samples.popleft()
        first = samples[0] if samples else None
        if first is None or now - samples[-1].at_s >= _APART_S:
            samples.append(latest)
        if first is None or now - first.at_s < _APART_S:
            return WorkRates()
        elapsed, read_bytes = now - first.at_s, latest.read_bytes - first.read_bytes
        return WorkRates(
            intensity=(latest.operations - first.operations) / read_bytes if read_bytes else math.nan,
            read_bytes_per_s=read_bytes / elapsed,
            finished_per_s=(latest.finished - first.finished) / elapsed,
        )
