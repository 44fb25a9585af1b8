"""The gated delta rule of one layer (Gated DeltaNet, Yang et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kvarn.kernels.batch import StateCache
from kvarn.kernels.linear import Norm

QUERY_KEY_EPS = 1e-6
"""Added to the sum of squares by which queries and keys are brought to length one."""


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The small weights of one layer, all float32."""

    convolution: torch.Tensor
    """[window, channels], the oldest token's first."""
    decay: torch.Tensor
    """[value_heads], below 0: a head's state fades by exp(decay * softplus(...)) with each token."""
    decay_bias: torch.Tensor
    """[value_heads]: added to a token's number inside the softplus."""
    norm: Norm
    """The norm of each head's output: weight [value_dim]."""


class DeltaMetadata(Protocol):
    """States that the tokens of one step change: worked out once for all layers."""

    def run(
        self, projected: torch.Tensor, rates: torch.Tensor, weights: DeltaWeights, cache: StateCache, layer: int
    ) -> torch.Tensor:
        """All of a layer between its products.

        projected: [T, channels + value_features]: queries, keys and values by heads, then the output's gates. rates:
        [T, 2 value_heads]: what decides how much of the state a token overwrites (through a sigmoid, beta), and how
        much of it fades. Queries, keys and values go through the convolution over the last tokens of their sequence and
        SiLU; queries and keys are brought to length one, queries scaled by the root of key_dim. Then for each token and
        value head, S the state and exp(g) its fading::

            S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  o = S^T q

        Returns [T, value_features]: each head's o, normed, times the SiLU of its gates. The cache's `layer` holds the
        sequences' states after the step, and the copies that the step asks for.
        """
        ...
