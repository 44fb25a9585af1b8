"""A linear layer and the norms as a model sees them: packed once, at load, by the backend that computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kvarn.kernels.adapters import AdapterBatch


@dataclass(frozen=True, slots=True)
class Norm:
    """A root-mean-square norm of the last dimension."""

    weight: torch.Tensor
    """float32; broadcasts against what is normed."""
    eps: float


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """A layer norm of the last dimension, weight and bias in the activations' type."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float


class Linear(Protocol):
    """out = norm(x) W^T + bias; or, packed with an activation, activation(gate) * up."""

    out_features: int  # numbers in a row of the result
    in_features: int  # numbers in a row of the input
    nbytes: int
    """Bytes read for one product with a few rows: the packed weight, scales included."""
    adapter_layer: int
    """Its number among the layers that adapters change, set when the model is loaded; -1: they do not change it."""
    input_order: torch.Tensor | None
    """[in_features] int64: the order in which the weight's columns take the inputs; None: as they stand."""

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """Multiply.

        Args:
            x: [T, in_features] in the backend's activation type; T may be 0.
            norm: Applied to x first.
            add_to: [T, out_features], no part of x; the result is added to it in place, and it is returned.
            adapters: The adapter of each row; what it adds is part of the sum before an activation. None: the base
                model for all. The bits of a row do not depend on the adapters of others.

        Returns:
            [T, out_features] in x's type.
        """
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [len(ids), in_features] of the weight in the activation type: a tied embedding's lookup."""
        ...


class HeadProducts(Protocol):
    nbytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H, in] to [T, H, out]: each head times its own weight."""
        ...
