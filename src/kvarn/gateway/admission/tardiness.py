"""How much later than foretold first tokens come: what the step-time model cannot know, such as a busy gateway."""

from __future__ import annotations

import math

FADE = 0.05
"""Weight of the latest request."""
FORGET_S = 10.0
"""Without news, a third is left after so long: where all is refused there is no news, and it must not stay so."""


class Tardiness:
    """A moving average of prediction errors, in seconds; never negative."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._at = 0.0

    def learn(self, error_s: float, now: float) -> None:
        """A first token came `error_s` later than foretold; earlier where negative."""
        self._mean = self._faded(now) + FADE * (error_s - self._mean)
        self._at = now

    def expected_s(self, now: float) -> float:
        """By how much the next will be late."""
        return max(0.0, self._faded(now))

    def _faded(self, now: float) -> float:
        return self._mean * math.exp(min(0.0, self._at - now) / FORGET_S)
