"""How far behind the gateway's process is: how late its event loop runs what is due."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from statistics import median

INTERVAL_S = 0.02
SAMPLES = 5
"""Their median counts: one long turn of the loop is no overload."""
TURNS = 8
"""Turns of the loop from a request's first byte to the first byte of its answer, about: each waits for the one before
it, and takes as long as all that is ready to run."""


class LoopLag:
    """Measures the loop that it runs on."""

    def __init__(self) -> None:
        self._samples = deque([0.0] * SAMPLES, SAMPLES)

    @property
    def seconds(self) -> float:
        """What is due runs so late."""
        return median(self._samples)

    @property
    def delay_s(self) -> float:
        """What the process adds to the time to first token of a request that comes now."""
        return TURNS * self.seconds

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._samples.append(max(0.0, time.monotonic() - due))
