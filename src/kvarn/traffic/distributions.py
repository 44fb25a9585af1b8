"""Distributions that lengths and pauses are drawn from: fixed, uniform, log-normal, or by measured quantiles."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec
import numpy as np

from kvarn.traffic.draws import Draws, Floats, exp, log


class Distribution(Protocol):
    """Numbers of one kind: tokens, turns, seconds."""

    def numbers(self, draws: Draws, count: int) -> Floats: ...


class Fixed(msgspec.Struct, frozen=True):
    value: float

    def numbers(self, draws: Draws, count: int) -> Floats:
        return np.full(count, float(self.value))


class Uniform(msgspec.Struct, frozen=True):
    """Uniform between both ends."""

    low: float
    high: float

    @classmethod
    def whole(cls, low: int, high: int) -> Uniform:
        """The one that `tokens` rounds to whole numbers from `low` to `high`, each as likely."""
        return cls(low - 0.5, high + 0.5)

    def numbers(self, draws: Draws, count: int) -> Floats:
        return self.low + draws.uniform(count) * (self.high - self.low)


class LogNormal(msgspec.Struct, frozen=True):
    """A number whose logarithm is normal, cut to `low` and `high`."""

    median: float
    sigma: float
    """Standard deviation of the logarithm."""
    low: float = 0.0
    high: float = math.inf

    @classmethod
    def of_mean(cls, median: float, mean: float, low: float = 0.0, high: float = math.inf) -> LogNormal:
        """The one with this median and, but for the cut, this mean."""
        return cls(median, math.sqrt(2.0 * log(np.array([mean / median]))[0]), low, high)

    def numbers(self, draws: Draws, count: int) -> Floats:
        drawn = self.median * exp(self.sigma * draws.normal(count))
        return np.minimum(np.maximum(drawn, self.low), self.high)


class Quantiles(msgspec.Struct, frozen=True):
    """Measured numbers, by what lies below them: linear between two points."""

    points: tuple[tuple[float, float], ...]
    """Shares from 0 to 1 in rising order, each with its number."""

    def numbers(self, draws: Draws, count: int) -> Floats:
        shares = np.array([share for share, _ in self.points])
        values = np.array([value for _, value in self.points])
        uniform = draws.uniform(count)
        place = np.minimum(np.searchsorted(shares, uniform, side="right"), len(shares) - 1) - 1
        slopes = (values[1:] - values[:-1]) / (shares[1:] - shares[:-1])
        return np.asarray(values[place] + (uniform - shares[place]) * slopes[place])


def tokens(distribution: Distribution, draws: Draws, count: int, least: int = 1) -> list[int]:
    """Whole numbers, each at least `least`."""
    drawn: list[int] = np.maximum(np.floor(distribution.numbers(draws, count) + 0.5), least).astype(np.int64).tolist()
    return drawn
