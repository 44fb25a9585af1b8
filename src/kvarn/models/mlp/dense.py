"""One MLP: dense, or an expert of a mixture."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention import LayerStep
from kvarn.models.families.family import LayerNames
from kvarn.models.loading.weights import Interleaved, LinearSpec, Role, WeightLoader
from kvarn.models.parallel.row import RowParallelLinear
from kvarn.models.parallel.tensor import Parallel, Shard
from kvarn.models.spec import DecoderSpec


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
    def load(
        prefix: str,
        intermediate_size: int,
        spec: DecoderSpec,
        names: LayerNames,
        loader: WeightLoader,
        role: Role = "layer",
    ) -> DenseMlp:
        hidden, parallel = Shard.whole(spec.hidden_size), loader.parallel
        if role == "expert":
            inner = _expert_features(intermediate_size, parallel)
        else:
            inner = parallel.share(intermediate_size, "intermediate features")
        gate_up = LinearSpec(
            names=tuple(f"{prefix}.{name}" for name in names.gate_up),
            outputs=(inner, inner),
            inputs=hidden,
            bias=spec.mlp_bias,
            activation=spec.activation,
            role=role,
        )
        down = LinearSpec(
            names=(f"{prefix}.{names.down}",), outputs=(hidden,), inputs=inner, bias=spec.mlp_bias, role=role
        )
        return DenseMlp(loader.linear(gate_up), loader.linear(down))

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


def _expert_features(size: int, parallel: Parallel) -> Shard:
    if parallel.expert_parallel:
        return parallel.undivided(size)
    return parallel.share(size, "intermediate features")


def load_stacked_expert(name: str, expert: int, spec: DecoderSpec, loader: WeightLoader) -> DenseMlp:
    """One expert of tensors that hold all of them, with biases, and gate and up in turn."""
    hidden, inner = Shard.whole(spec.hidden_size), _expert_features(spec.expert_size, loader.parallel)
    pairs = Interleaved(run=2 * inner.size, first=0, count=2 * inner.size)
    gate_up = LinearSpec(
        names=(f"{name}.gate_up_proj",),
        outputs=(inner, inner),
        inputs=hidden,
        bias=True,
        activation=None if spec.swiglu else spec.activation,
        interleaved=(pairs,),
        expert=expert,
        role="expert",
    )
    down = LinearSpec(
        names=(f"{name}.down_proj",), outputs=(hidden,), inputs=inner, bias=True, expert=expert, role="expert"
    )
    gate = ClampedSwiglu(loader.kernels.operations, *spec.swiglu) if spec.swiglu else None
    return DenseMlp(loader.linear(gate_up), loader.linear(down), gate)
