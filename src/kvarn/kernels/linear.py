"""A linear layer and the norms as a model sees them: packed once, at load, by the backend that computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch


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
    bias: torch.Tensor
    eps: float


class Linear(Protocol):
    """out = norm(x) W^T + bias; or, packed with an activation, activation(gate) * up."""

    out_features: int
    """Numbers in a row of the result."""
    in_features: int
    """Numbers in a row of the input."""
    nbytes: int
    """Bytes read for one product with a few rows: the packed weight, scales included."""

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply.

        Args:
            x: [T, in_features] in the backend's activation type; T may be 0.
            norm: Applied to x first.
            add_to: [T, out_features], no part of x; the result is added to it in place, and it is returned.
            adapters: [T] int64, the adapter of each row (see `PagedBatch.adapters`). A layer without adapters of its
                own computes the base model for every row.

        Returns:
            [T, out_features] in x's type.
        """
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [len(ids), in_features] of the weight in the activation type: a tied embedding's lookup."""
        ...


@runtime_checkable
class KeepsPackedWeights(Protocol):
    """What a backend offers beside `kvarn.kernels.interface.Kernels` if its packed weights can be kept in files."""

    packed_layout: str
    """Names the layout of packed bytes; changes whenever their meaning does."""

    def save_linear(self, layer: Linear) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What the bytes of a layer mean, as JSON values, and its tensors by name.

        `blob` (uint8, a multiple of 64 bytes) must begin on a 64-byte boundary when it is loaded. Nothing is copied.
        """
        ...

    def load_linear(self, form: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Linear:
        """The layer again, on the same bytes, which may be a read-only map of a file.

        Raises KernelError where form and tensors do not fit together.
        """
        ...
