"""How far behind the gateway's process is: how long requests wait before anything is done for them.

Under overload the time to first token is spent here, unseen by whoever only looks at the engine. A standing wait is
overload, a burst is none: so waits are averaged over time, as routers do with their queues (Nichols and Jacobson,
"Controlling Queue Delay", 2012).
"""

from __future__ import annotations

import math

SATURATED_S = 0.05
"""A process that is not saturated never lets requests wait for so long, but for a moment."""
TARGET_SHARE = 0.1
"""Nor for more than this part of the TTFT target: a request waits several times until its first token."""
AVERAGED_SHARE = 0.25
"""Part of the TTFT target over which waits are averaged."""
LONGEST_GAP_S = 0.02
"""A request counts for the time since the one before it, but for no longer: in the rest of that time nobody waited."""


class ProcessDelay:
    """Follows the waits of one process.

    Args:
        ttft_target_s: What requests shall keep.
    """

    def __init__(self, ttft_target_s: float) -> None:
        self._limit_s = min(SATURATED_S, TARGET_SHARE * ttft_target_s)
        self._averaged_s = AVERAGED_SHARE * ttft_target_s
        self._mean_s = 0.0
        self._at = 0.0

    def note(self, waited_s: float, now: float) -> None:
        """A request is decided on, so long after it reached this machine."""
        gap_s = now - self._at
        weight = 1 - math.exp(-min(gap_s, LONGEST_GAP_S) / self._averaged_s)
        self._mean_s = math.exp(-gap_s / self._averaged_s) * self._mean_s + weight * waited_s
        self._at = now

    def is_too_long(self, waited_s: float) -> bool:
        """Whether the process is saturated, and a request that has waited so long must be refused."""
        return min(waited_s, self._mean_s) > self._limit_s
