"""A linear layer as a model sees it: packed once, at load, by the backend that multiplies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Norm:
    """A root-mean-square norm of the last dimension."""

    weight: torch.Tensor
    """float32; broadcasts against what is normed."""
    eps: float


class Linear(Protocol):
    """out = norm(x) W^T + bias; or, packed with an activation, activation(gate) * up."""

    @property
    def out_features(self) -> int:
        """Numbers a row of the result has."""
        ...

    @property
    def in_features(self) -> int:
        """Numbers a row of the input has."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes read for one product with a few rows: the packed weight, scales included."""
        ...

    def __call__(
        self, x: torch.Tensor, *, norm: Norm | None = None, add_to: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply.

        Args:
            x: [T, in_features] in the backend's activation type; T may be 0.
            norm: Applied to x first.
            add_to: [T, out_features], no part of x; the result is added to it in place, and it is returned.

        Returns:
            [T, out_features] in x's type.
        """
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [len(ids), in_features] of the weight in the activation type: a tied embedding's lookup."""
        ...
