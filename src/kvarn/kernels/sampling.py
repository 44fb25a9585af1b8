"""The definition of drawing a token: one for each row, bit for bit the same whatever else is in the batch.

Method: inverse CDF with one uniform number a row, over *integer* weights

    w[i] = round(2**b * exp((logit[i] - max logit) / temperature)),    b = min(42, 52 - ceil(log2(vocabulary)))

Why not Gumbel-max: it needs a random number for every token of the vocabulary instead of one for every row. Why
integers: a sum of integers below 2**53 is exact in float64 in any order. So totals, cumulative sums and the comparisons
of top-p do not depend on how a product or a reduction is split into tiles, lanes or threads, and every shortcut of a
backend (two-level search, candidate sets, selection) gives exactly what a full sort would give. The only inexact
operations are elementwise. The cost: a token's share is off by at most 2**-(b+1) of the most likely token's, 2**-35 for
a vocabulary of 2**18: too little to be measured. A backend's exponential is its own, so two backends agree on all but
the few tokens at whose boundary the uniform number lies.

Filters act on the weights in the order min-p, top-k, top-p. Ties go to the lowest token id. Without top-k and top-p the
cumulative sum runs in the order of token ids; with them, in the order (weight descending, token id ascending).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_MOST_BITS = 42
"""A weight of so many bits and a token id make one integer key below 2**63, by which the reference sorts."""


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of R rows; all of shape [R]."""

    temperature: torch.Tensor
    """float32, > 0."""
    top_k: torch.Tensor
    """int64; 0 keeps all."""
    top_p: torch.Tensor
    """float64 in (0, 1]."""
    min_p: torch.Tensor
    """float32 in [0, 1]."""
    uniforms: torch.Tensor
    """float64 in [0, 1)."""

    def take(self, rows: torch.Tensor) -> SamplingTensors:
        columns = (self.temperature, self.top_k, self.top_p, self.min_p, self.uniforms)
        return SamplingTensors(*(column[rows] for column in columns))

    @property
    def filtered(self) -> torch.Tensor:
        """[R] bool: rows which need their most likely tokens in order."""
        return (self.top_k > 0) | (self.top_p < 1.0)


def weight_bits(vocab_size: int) -> int:
    """b in the module's docstring: the sum of `vocab_size` weights of at most 2**b stays within 2**52."""
    return min(_MOST_BITS, 52 - math.ceil(math.log2(vocab_size)))


def unpack_mask(mask: bytes | memoryview, vocab_size: int) -> npt.NDArray[np.bool_]:
    """[vocab] whether a mask (a bit for each token, see `kvarn.engine.plan.RowMasks`) allows each."""
    return np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=vocab_size, bitorder="little").view(np.bool_)
