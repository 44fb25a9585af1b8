"""Arrivals: moments at which conversations begin, from a rate that may change and a burstiness around it.

A point process of rate 1 with gamma gaps is stretched by the rate: where it is twice as high, gaps are half as long. So
each shape of the rate can be had with each burstiness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple

import msgspec
import numpy as np

from kvarn.traffic.draws import Draws

_BLOCK = 1024
_GAPS, _STATES = 1, 2  # streams of draws
_DIURNAL_STEPS = 96


class RateStep(NamedTuple):
    """A rate, and the seconds for which it holds."""

    duration_s: float
    rate: float


class ArrivalPattern(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of arrivals around their mean rate. The default is a Poisson process."""

    cv: float = 1.0
    """Coefficient of variation of the gaps: 0 evenly spaced, 1 Poisson, above it bursts."""
    peak: float = 1.0
    """Rate of the busy state over the mean rate; 1: there are no states (a Markov-modulated process has two)."""
    busy_share: float = 0.2
    """Part of the time that is busy."""
    busy_s: float = 60.0
    """Mean seconds of a busy time."""
    swing: float = 0.0
    """Height of a daily wave over the mean rate, below 1: 0.5 goes from half to one and a half times the mean."""
    period_s: float = 86_400.0
    """Seconds of the wave. It begins at the mean, on its way up."""

    @classmethod
    def parse(cls, text: str) -> ArrivalPattern:
        """Read `poisson`, `uniform`, `gamma:CV`, `markov:PEAK`, `diurnal:SWING`, or several joined by `+`; raises
        ValueError."""
        found: dict[str, float] = {}
        names = {"gamma": "cv", "markov": "peak", "diurnal": "swing"}
        for part in text.split("+"):
            name, _, number = part.partition(":")
            if part == "uniform":
                found["cv"] = 0.0
            elif name in names:
                try:
                    found[names[name]] = float(number)
                except ValueError:
                    raise ValueError(f"{part!r}: write {name} with a number, such as {name}:0.5") from None
            elif part != "poisson":
                raise ValueError(f"{text!r} is no pattern: poisson, uniform, gamma:CV, markov:PEAK, diurnal:SWING")
        return cls(**found).checked()

    def checked(self) -> ArrivalPattern:
        """Itself; raises ValueError for numbers that make no pattern."""
        if not 0.0 <= self.cv <= 100.0:
            raise ValueError("the gaps' coefficient of variation is from 0 to 100")
        if not 0.0 <= self.swing < 1.0:
            raise ValueError("a daily wave's swing is from 0 to below 1")
        if not 0.0 < self.busy_share < 1.0 or not 1.0 <= self.peak <= 1.0 / self.busy_share:
            raise ValueError(f"the busy state's peak is from 1 to {1.0 / self.busy_share:g} times the mean rate")
        return self

    def __str__(self) -> str:
        parts = [f"gamma:{self.cv:g}"] if self.cv not in (0.0, 1.0) else ["uniform"] if self.cv == 0.0 else []
        parts += [f"markov:{self.peak:g}"] if self.peak > 1.0 else []
        parts += [f"diurnal:{self.swing:g}"] if self.swing else []
        return "+".join(parts) or "poisson"

    def steps(self, rate: float, seed: int) -> Iterator[RateStep]:
        """The rate over time, endless, of the mean `rate`."""
        if self.peak > 1.0 and self.swing:
            return _product(self._states(rate, seed), self._wave())
        if self.peak > 1.0:
            return self._states(rate, seed)
        if self.swing:
            return (RateStep(each.duration_s, each.rate * rate) for each in self._wave())
        return repeat(RateStep(math.inf, rate))

    def _states(self, rate: float, seed: int) -> Iterator[RateStep]:
        draws = Draws(seed, _STATES)
        quiet = max(0.0, (1.0 - self.busy_share * self.peak) / (1.0 - self.busy_share))
        quiet_s = self.busy_s * (1.0 - self.busy_share) / self.busy_share
        while True:
            quiet_time, busy_time = draws.exponential(2).tolist()
            yield RateStep(quiet_time * quiet_s, quiet * rate)
            yield RateStep(busy_time * self.busy_s, self.peak * rate)

    def _wave(self) -> Iterator[RateStep]:
        width = self.period_s / _DIURNAL_STEPS
        day = [
            RateStep(width, 1.0 + self.swing * _sine((place + 0.5) / _DIURNAL_STEPS)) for place in range(_DIURNAL_STEPS)
        ]
        return chain.from_iterable(repeat(day))


def arrivals(pattern: ArrivalPattern, rate: float, seed: int, duration_s: float = math.inf) -> Iterator[float]:
    """Seconds after the start, ascending, up to `duration_s`. Raises ValueError for a rate that is not above 0."""
    if not 0.0 < rate < math.inf:
        raise ValueError("the rate must be above 0 requests per second")
    return _stretched(_unit_gaps(pattern.cv, Draws(seed, _GAPS)), pattern.steps(rate, seed), duration_s)


def _stretched(gaps: Iterator[float], steps: Iterator[RateStep], duration_s: float) -> Iterator[float]:
    step = next(steps)
    now, ends = 0.0, step.duration_s
    for gap in gaps:
        while gap > (ends - now) * step.rate:
            if ends > duration_s:
                return
            gap -= (ends - now) * step.rate
            now, step = ends, next(steps)
            ends = now + step.duration_s
        now += gap / step.rate
        if now > duration_s:
            return
        yield now


def _unit_gaps(cv: float, draws: Draws) -> Iterator[float]:
    if cv == 0.0:
        return repeat(1.0)
    if cv == 1.0:
        return chain.from_iterable(draws.exponential(_BLOCK).tolist() for _ in iter(int, 1))
    return _listed(draws.gamma(1.0 / (cv * cv), _BLOCK))


def _listed(blocks: Iterable[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> Iterator[float]:
    for block in blocks:
        yield from block.tolist()


def _product(rates: Iterator[RateStep], factors: Iterator[RateStep]) -> Iterator[RateStep]:
    """Steps wherever one of both changes."""
    one, other = next(rates), next(factors)
    left, left_other = one.duration_s, other.duration_s
    while True:
        width = min(left, left_other)
        yield RateStep(width, one.rate * other.rate)
        left, left_other = left - width, left_other - width
        if left <= 0.0:
            one = next(rates)
            left = one.duration_s
        if left_other <= 0.0:
            other = next(factors)
            left_other = other.duration_s


def _sine(turns: float) -> float:
    """Sine of so many full turns from 0 to 1, to 0.002: Bhaskara's formula, which needs no C library."""
    half = turns * 2.0 if turns <= 0.5 else turns * 2.0 - 1.0
    product = half * (1.0 - half)
    value = 16.0 * product / (5.0 - 4.0 * product)
    return value if turns <= 0.5 else -value
