"""Choice of the requests that are kept: those that failed, the slowest, and of the rest what a rate allows. Pure.

A request is slow when at most a hundredth (`slowest`) of those of its group in this hour took as long. Durations are
counted in buckets whose bounds differ by 9 %, and all of its own bucket count as slower: so of those that are not
taken, each is faster than the slowest hundredth, or within 9 % of it. Until an hour has a hundred requests of a group,
those of the hour before count, too; a group of fewer than a hundred has no slow ones.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import floor, log2

from kvarn.config.platform import KeptConfig

BURST_S = 30.0
"""Seconds whose requests a rate lets through at once."""
_BUCKETS_PER_DOUBLING = 8
_SMALLEST_S = 1e-4
_BUCKETS = 30 * _BUCKETS_PER_DOUBLING  # up to 30 hours
_MAX_GROUPS = 256
_HOUR_S = 3600.0


class KeptReason(StrEnum):
    """Why a request is kept."""

    ERROR = "error"  # the server failed
    REFUSED = "refused"  # the client's request could not be taken as it was
    SLOW = "slow"
    ORDINARY = "ordinary"


class KeptSampler:
    """Decides for the requests of one gateway process.

    Args:
        config: Its rates are those of the server.
        clock: Seconds.
        draw: Gives numbers from 0 to 1.
        processes: Gateway processes that divide the rates.
    """

    def __init__(
        self, config: KeptConfig, clock: Callable[[], float], draw: Callable[[], float], processes: int = 1
    ) -> None:
        self._clock, self._draw = clock, draw
        self._share = 1 / config.one_in
        self._slowest = config.slowest
        self._groups: dict[str, _Durations] = {}
        rates = {
            KeptReason.ERROR: config.notable_per_s,
            KeptReason.SLOW: config.notable_per_s,
            KeptReason.REFUSED: config.refused_per_s,
            KeptReason.ORDINARY: config.ordinary_per_s,
        }
        self._rates = {reason: _Rate(per_s / processes, clock()) for reason, per_s in rates.items()}

    def reason(self, group: str, outcome: str, total_s: float) -> KeptReason | None:
        """Why a request is kept; None: it is not.

        Args:
            group: What it is compared with: its model.
            outcome: See `TracedRequest.outcome`.
            total_s: Its duration.
        """
        now = self._clock()
        if outcome == "failed":
            return self._within(KeptReason.ERROR, now)
        if outcome == "refused":
            return self._within(KeptReason.REFUSED, now)
        if self._is_slow(group, total_s, now) and self._within(KeptReason.SLOW, now):
            return KeptReason.SLOW
        if self._share < 1 and self._draw() >= self._share:
            return None
        return self._within(KeptReason.ORDINARY, now)

    def _within(self, reason: KeptReason, now: float) -> KeptReason | None:
        return reason if self._rates[reason].take(now) else None

    def _is_slow(self, group: str, total_s: float, now: float) -> bool:
        durations = self._groups.get(group)
        if durations is None:
            if len(self._groups) >= _MAX_GROUPS:
                del self._groups[next(iter(self._groups))]
            durations = self._groups[group] = _Durations()
        return durations.add(total_s, int(now / _HOUR_S), self._slowest)


class _Rate:
    """Lets through `per_s` a second, and `BURST_S` seconds' worth at once, but one at least."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s * BURST_S) if per_s else 0.0
        self._left, self._at = self._burst, now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Durations:
    """Durations of a group in this hour and in the one before, by bucket."""

    __slots__ = ("_before", "_count", "_counts", "_hour")

    def __init__(self) -> None:
        self._hour = 0
        self._count = 0
        self._counts = [0] * _BUCKETS
        self._before = [0] * _BUCKETS

    def add(self, total_s: float, hour: int, slowest: float) -> bool:
        """Count a duration; whether it is one of the slowest."""
        if hour != self._hour:
            self._before = self._counts if hour == self._hour + 1 else [0] * _BUCKETS
            self._counts, self._count, self._hour = [0] * _BUCKETS, 0, hour
        bucket = bucket_of(total_s)
        self._counts[bucket] += 1
        self._count += 1
        slower, count = sum(self._counts[bucket:]), self._count
        if count * slowest < 1:
            slower, count = slower + sum(self._before[bucket:]), count + sum(self._before)
        return slower <= count * slowest


def bucket_of(total_s: float) -> int:
    place = floor(_BUCKETS_PER_DOUBLING * log2(max(total_s, _SMALLEST_S) / _SMALLEST_S))
    return min(place, _BUCKETS - 1)
