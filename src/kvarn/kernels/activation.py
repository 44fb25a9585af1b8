"""Activation functions of MLPs and of gates, in torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from kvarn.shapes.activation import Activation as Activation


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """In torch; `gelu_tanh` is the approximation by a hyperbolic tangent."""
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            # Torch's own calls oneDNN, which gives NaN for infinity on processors with AVX-512.
            x32 = x.float()
            share: torch.Tensor = torch.special.erfc(x32 * -math.sqrt(0.5))
            return (x32 * share * 0.5).to(x.dtype)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "sigmoid":
            return torch.sigmoid(x)
        case "tanh":
            return torch.tanh(x)
