"""Activation functions by name."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

Activation = Literal["silu", "gelu", "gelu_tanh"]


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Torch's own; `gelu_tanh` is the approximation by a hyperbolic tangent."""
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
