"""Processes of the gateway, each of which reads one request at a time."""

from __future__ import annotations

import heapq


class GatewayProcesses:
    """Times until which each process is busy; a request takes the one that is free first."""

    def __init__(self, count: int) -> None:
        self._free_s = [0.0] * count

    def reserve(self, now: float, busy_s: float) -> float:
        """Seconds that a request of this moment waits until a process reads it, for `busy_s`."""
        begin = max(now, self._free_s[0])
        heapq.heapreplace(self._free_s, begin + busy_s)
        return begin - now
