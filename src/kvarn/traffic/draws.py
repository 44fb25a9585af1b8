"""Random draws that are equal to the last bit on every machine, with every version of numpy.

A bit generator's raw numbers are guaranteed to stay (NEP 19); numpy's distributions are not, and a C library's `log`
and `exp` differ between machines. So draws begin with raw bits of PCG64, and everything after them is made of + - * /
and square roots, which IEEE 754 defines exactly. Each is a numpy operation of its own: no compiler can join two of them
into one with another rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_TAIL = 0.02425  # of a normal distribution: another approximation begins there
_CENTRE_TOP = (
    *(-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02),
    *(1.383577518672690e02, -3.066479806614716e01, 2.506628277459239e00),
)
_CENTRE_BOTTOM = (
    *(-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02),
    *(6.680131188771972e01, -1.328068155288572e01, 1.0),
)
_TAIL_TOP = (
    *(-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00),
    *(-2.549732539343734e00, 4.374664141464968e00, 2.938163982698783e00),
)
_TAIL_BOTTOM = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0)


class Draws:
    """A stream of random numbers. Streams with other names are independent, so that one more draw of lengths moves no
    arrival."""

    def __init__(self, seed: int, *stream: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, *stream]))

    def uniform(self, count: int) -> Floats:
        """Numbers strictly between 0 and 1, odd multiples of 2**-53: all are exact."""
        raw = np.asarray(self._bits.random_raw(count)) >> np.uint64(12)
        return (raw.astype(np.float64) + 0.5) * 2.0**-52

    def exponential(self, count: int) -> Floats:
        """Numbers of mean 1."""
        return -log(self.uniform(count))

    def normal(self, count: int) -> Floats:
        """Numbers of mean 0 and variance 1."""
        return normal_quantile(self.uniform(count))

    def gamma(self, shape: float, count: int) -> Iterator[Floats]:
        """Endless blocks of numbers of mean 1 and variance 1 / `shape`: Marsaglia and Tsang's method, 2000."""
        # A shape below 1 is that of one more, times a power of a uniform draw.
        lifted = shape + 1.0 if shape < 1.0 else shape
        d = lifted - 1.0 / 3.0
        c = 1.0 / np.sqrt(9.0 * d)
        while True:
            normal, uniform = self.normal(count), self.uniform(count)
            power = self.uniform(count) if shape < 1.0 else None
            root = 1.0 + c * normal
            cube = np.maximum(root * root * root, 1e-300)
            bound = normal * normal * 0.5 + d * ((1.0 - cube) + log(cube))
            drawn = d * cube
            if power is not None:
                drawn = drawn * exp(log(power) / shape)
            yield drawn[(root > 0.0) & (log(uniform) < bound)] / shape


def log(x: Floats) -> Floats:
    """Natural logarithm of positive numbers, to about 1e-15."""
    fraction, exponent = np.frexp(x)
    is_low = fraction < _SQRT_HALF
    fraction = np.where(is_low, fraction * 2.0, fraction)
    exponent = exponent - is_low
    s = (fraction - 1.0) / (fraction + 1.0)
    z = s * s
    series = _polynomial([1.0 / power for power in range(25, 0, -2)], z)
    return np.asarray(exponent * _LN2 + 2.0 * s * series)


def exp(x: Floats) -> Floats:
    """Exponential function, to about 1e-15."""
    whole = np.floor(x / _LN2 + 0.5)
    rest = x - whole * _LN2
    coefficients, factorial = [1.0], 1.0
    for power in range(1, 16):
        factorial *= power
        coefficients.append(1.0 / factorial)
    return np.asarray(np.ldexp(_polynomial(coefficients[::-1], rest), whole.astype(np.int64)))


def normal_quantile(p: Floats) -> Floats:
    """Quantiles of the standard normal distribution, to a relative 1.2e-9: Acklam's rational approximation."""
    near = np.minimum(p, 1.0 - p)
    q = p - 0.5
    r = q * q
    centre = _polynomial(_CENTRE_TOP, r) * q / _polynomial(_CENTRE_BOTTOM, r)
    t = np.sqrt(-2.0 * log(near))
    tail = _polynomial(_TAIL_TOP, t) / _polynomial(_TAIL_BOTTOM, t)
    return np.where(near >= _TAIL, centre, np.where(p < 0.5, tail, -tail))


def _polynomial(coefficients: Iterable[float], x: Floats) -> Floats:
    """Horner's scheme, the highest power first."""
    total = np.zeros_like(x)
    for coefficient in coefficients:
        total = total * x + coefficient
    return total
