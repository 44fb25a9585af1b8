"""The latest samples of the metrics that alert rules read."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Collection, Iterable
from itertools import pairwise

from prometheus_client.core import Metric

Labels = tuple[tuple[str, str], ...]
"""Names and values of a series' labels, sorted by name; one without a value is left out."""


class MetricHistory:
    """Samples of some metrics, for as long as rules look back: each series is an array beside the times.

    Args:
        names: The samples' names, such as `kvarn_ttft_seconds_bucket`.
        keep_s: The longest window.
    """

    def __init__(self, names: Collection[str], keep_s: float) -> None:
        self._keep_s = keep_s
        self._times: deque[float] = deque()
        self._series: dict[str, dict[Labels, array[float]]] = {name: {} for name in names}

    def add(self, now: float, families: Iterable[Metric]) -> None:
        """Add what a registry shows now."""
        self._times.append(now)
        for series in self._series.values():
            for values in series.values():
                values.append(math.nan)
        for family in families:
            for sample in family.samples:
                known = self._series.get(sample.name)
                if known is None:
                    continue
                labels = tuple(sorted((name, value) for name, value in sample.labels.items() if value))
                if labels not in known:
                    known[labels] = array("d", [math.nan] * len(self._times))
                known[labels][-1] = sample.value
        self._forget(now - self._keep_s)

    def _forget(self, before: float) -> None:
        gone = 0
        while self._times and self._times[0] < before:
            self._times.popleft()
            gone += 1
        if not gone:
            return
        for series in self._series.values():
            for labels, values in list(series.items()):
                del values[:gone]
                if all(map(math.isnan, values)):
                    del series[labels]

    def latest(self, name: str) -> dict[Labels, float]:
        """The values of the latest look; a series that was missing then is left out."""
        return {labels: values[-1] for labels, values in self._series[name].items() if not math.isnan(values[-1])}

    def increases(self, name: str, seconds: float) -> dict[Labels, float]:
        """The growth of counters over the latest seconds, restarts allowed for; of series with two samples or more."""
        start = next((i for i, at in enumerate(self._times) if at >= self._times[-1] - seconds), 0)
        found = {}
        for labels, values in self._series[name].items():
            present = [value for value in values[start:] if not math.isnan(value)]
            if len(present) > 1:
                pairs = pairwise(present)
                found[labels] = sum(after - before if after >= before else after for before, after in pairs)
        return found
