"""One MLP: dense, or an expert of a mixture."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention import LayerStep
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.row import RowParallelLinear
from kvarn.specs.mlp import MlpProducts


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


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(activation(gate(x)) * up(x))."""

    gate_up: Linear
    down: Linear
    gate: ClampedSwiglu | None = None
    """Joins gate and up; None: their product does."""

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes

    @staticmethod
    def load(products: MlpProducts, loader: WeightLoader, gate: ClampedSwiglu | None = None) -> DenseMlp:
        return DenseMlp(loader.linear(products.gate_up), loader.linear(products.down), gate)

    def forward(
        self,
        x: torch.Tensor,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        step: LayerStep | None = None,
    ) -> torch.Tensor:
        """x [T, hidden], `norm` applied to it, to [T, hidden]; added in place to `add_to` where given."""
        adapters = None if step is None else step.adapters
        inner = self._gate(self.gate_up(x, norm=norm, adapters=adapters))
        return self.down(inner, add_to=add_to, adapters=adapters)

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum over ranks [T, hidden], or all of it."""
        inner = self._gate(self.gate_up(x))
        return self.down.partial(inner) if isinstance(self.down, RowParallelLinear) else self.down(inner)

    @property
    def bias_of_sum(self) -> torch.Tensor | None:
        """[hidden] float32, to be added to a sum over ranks; None where `partial` gives all there is."""
        return self.down.bias if isinstance(self.down, RowParallelLinear) and self.down.is_divided else None

    def _gate(self, inner: torch.Tensor) -> torch.Tensor:
        return inner if self.gate is None else self.gate(inner)
