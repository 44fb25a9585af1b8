"""Random numbers that are a function of (seed, position): Philox-4x32-10, a counter-based generator.

There is no state to carry, save or restore. Token `t` of a choice draws the same number when the choice runs alone or
in a batch, after a preemption, and on another replica.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); tested against the known
answers published with Random123.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""32-bit words, each held in a 64-bit integer so that products do not overflow."""

_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Encrypt a 4-word counter under a 2-word key; every array has the same shape, and so has each of the 4 results."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _LOW, (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
        k0 = (k0 + _WEYL[0]) & _LOW
        k1 = (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1), with 53 random bits, for each (seed [R], index of the token in the choice's output [R])."""
    place = positions.astype(np.uint64)
    none = np.zeros_like(place)
    words = philox4x32((place & _LOW, place >> _HALF, none, none), (seeds & _LOW, seeds >> _HALF))
    bits = (words[0] << _HALF) | words[1]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
