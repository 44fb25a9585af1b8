"""A weight in the form in which it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One linear layer, ready for its backend."""

    weight: torch.Tensor
    """[out, in], or the backend's packed form of it."""
    bias: torch.Tensor | None
    out_features: int
    in_features: int
