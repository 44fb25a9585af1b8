"""Times between the turns of a session, learned while serving: how likely the next one is, and when.

Gaps are taken as log-normal, which is what agents' tool calls and people's pauses look like, and only a share of the
turns is followed by another. Both are learned at three levels: of all, of a tenant, of a session. A level that has seen
little leans on the one above it. Old gaps fade.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_SHORTEST_S = 1e-3
_LONGEST_LOG = 9.0  # two hours
_LEAST_SIGMA = 0.3
_LARGEST_SHARE = 0.98


class GapEstimate(NamedTuple):
    """Mean and deviation of a gap's logarithm (natural, of seconds), and the share of turns that another follows."""

    mu: float
    sigma: float
    share: float

    @property
    def longest_s(self) -> float:
        """Seconds after which hardly any of the turns that come would still come: one in 160."""
        return math.exp(min(self.mu + 2.5 * self.sigma, _LONGEST_LOG))

    def probability(self, age_s: float, within_s: float) -> float:
        """Probability that the next turn comes within so many seconds, when it has not come for `age_s`."""
        by_now = self._cumulative(age_s)
        soon = self._cumulative(age_s + within_s) - by_now
        return self.share * max(0.0, soon) / (1.0 - self.share * by_now)

    def _cumulative(self, seconds: float) -> float:
        if seconds <= 0.0:
            return 0.0
        return 0.5 * math.erfc((self.mu - math.log(seconds)) / (self.sigma * math.sqrt(2.0)))


class Gaps:
    """Faded counts of the gaps at one level. `keep`: what an observation leaves of those before it."""

    __slots__ = ("_ended", "_keep", "_log_squares", "_logs", "_returned")

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._returned = self._ended = 0.0
        self._logs = self._log_squares = 0.0

    def returned(self, gap_s: float, count: int = 1) -> None:
        """So many have come back after a gap."""
        log = math.log(max(gap_s, _SHORTEST_S))
        self._fade(count)
        self._returned += count
        self._logs += count * log
        self._log_squares += count * log * log

    def ended(self) -> None:
        """No turn has followed, and none is expected any more."""
        self._fade()
        self._ended += 1.0

    def estimate(self, prior: GapEstimate, strength: float) -> GapEstimate:
        """Estimate from what was seen here, leaning on `prior` as if that had been seen `strength` times."""
        seen = self._returned + strength
        mu = (self._logs + strength * prior.mu) / seen
        squares = (self._log_squares + strength * (prior.sigma**2 + prior.mu**2)) / seen
        share = (self._returned + strength * prior.share) / (seen + self._ended)
        return GapEstimate(mu, max(_LEAST_SIGMA, math.sqrt(max(0.0, squares - mu * mu))), min(share, _LARGEST_SHARE))

    def _fade(self, count: int = 1) -> None:
        keep = self._keep**count
        self._returned *= keep
        self._ended *= keep
        self._logs *= keep
        self._log_squares *= keep
