"""The clamped gate of gpt-oss's experts, which no product computes by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.operations import Operations


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), after gate and up are clamped."""

    operations: Operations
    limit: float
    """Gate is at most this, up lies between this and its negative."""
    alpha: float

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 I], gate beside up, to [T, I]."""
        gate, up = gate_up.chunk(2, -1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        sigmoid = self.operations.activation((gate * self.alpha).contiguous(), "sigmoid")
        return (up + 1) * (gate * sigmoid)
