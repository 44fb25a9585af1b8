"""The feed-forward half of a layer: one dense MLP, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvarn.kernels.experts import GroupedExperts
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention import LayerStep
from kvarn.models.families.family import LayerNames
from kvarn.models.loading.weights import Interleaved, LinearSpec, Role, WeightLoader
from kvarn.models.mlp.experts import Experts
from kvarn.models.mlp.swiglu import ClampedSwiglu
from kvarn.models.parallel.row import RowParallelLinear
from kvarn.models.parallel.tensor import Parallel, Shard
from kvarn.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(activation(gate(x)) * up(x))."""

    gate_up: Linear
    down: Linear
    gate: ClampedSwiglu | None = None
    """Joins gate and up; None: their product does."""

    @property
    def nbytes(self) -> int:
        """Bytes of its products as they are held."""
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
        """The MLP whose tensors' names begin with `prefix`."""
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


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """A router that sends each token to a few experts (Shazeer et al. 2017), and perhaps one that all visit."""

    spec: DecoderSpec
    operations: Operations
    router: Linear
    choice_bias: torch.Tensor | None
    """[experts] float32: see `RouterSpec.choice_bias`."""
    experts: Experts
    shared: DenseMlp | None
    shared_gate: Linear | None
    """Scales the shared expert's answer by a sigmoid of its own."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its products, every expert's included."""
        parts = (self.router, self.experts, self.shared, self.shared_gate)
        return sum(part.nbytes for part in parts if part is not None)

    @staticmethod
    def load(index: int, prefix: str, spec: DecoderSpec, names: LayerNames, loader: WeightLoader) -> MoeMlp:
        """The mixture of layer `index`, whose tensors' names begin with `prefix`."""

        def gate(name: str, outputs: int, bias: bool = False) -> Linear:
            shard, hidden = Shard.whole(outputs), Shard.whole(spec.hidden_size)
            names = (prefix + name,)
            return loader.linear(LinearSpec(names=names, outputs=(shard,), inputs=hidden, bias=bias, role="router"))

        def mlp(name: str, intermediate_size: int, role: Role) -> DenseMlp:
            return DenseMlp.load(prefix + name, intermediate_size, spec, names, loader, role)

        shared_size, parallel = spec.shared_expert_size, loader.parallel
        placement = parallel.expert_placement(index, spec.num_experts)
        held = tuple(
            _load_stacked_expert(prefix + names.experts, expert, spec, loader)
            if spec.stacked_experts
            else mlp(f"{names.experts}.{expert}", spec.expert_size, "expert")
            for expert in placement.held(parallel.rank)
        )
        return MoeMlp(
            spec=spec,
            operations=loader.kernels.operations,
            router=gate(names.router, spec.num_experts, spec.router.bias),
            choice_bias=loader.plain(prefix + names.choice_bias, (spec.num_experts,)).float().to(loader.device)
            if spec.router.choice_bias
            else None,
            experts=Experts(
                parallel=parallel,
                placement=placement,
                held=held,
                visits=np.zeros(spec.num_experts, dtype=np.int64),
                grouped=_group(held, spec, loader) if parallel.world_size == 1 else None,
            ),
            shared=mlp(names.shared_expert, shared_size, "layer") if shared_size else None,
            shared_gate=gate(names.shared_expert_gate, 1) if shared_size and names.shared_expert_gate else None,
        )

    def forward(self, x: torch.Tensor, norm: Norm | None, add_to: torch.Tensor | None, step: LayerStep) -> torch.Tensor:
        """See `DenseMlp.forward`. Each visited expert runs once, over all of its tokens. Adapters change the shared one
        only."""
        if norm is not None:
            x = self.operations.rms_norm(x, norm)
        spec = self.spec
        shares, chosen = self.operations.route(self.router(x), spec.experts_per_token, spec.router, self.choice_bias)
        shared = self._shared(x, step)
        if self.experts.grouped is not None:
            return self.experts.grouped(x, shares, chosen, step.slots, shared, add_to)
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self.spec.experts_per_token
        counts = torch.bincount(chosen.flatten(), minlength=self.spec.num_experts)
        shares = shares.flatten()[order].unsqueeze(-1)
        out = self.experts.mix(x, tokens, counts, shares)
        if shared is not None:
            out += shared
        return out.to(x.dtype) if add_to is None else add_to.add_(out)

    def _shared(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor | None:
        """The shared expert's result [T, hidden] float32."""
        if self.shared is None:
            return None
        shared = self.shared.forward(x, step=step).float()
        if self.shared_gate is not None:
            shared *= self.operations.activation(self.shared_gate(x).float(), "sigmoid")
        return shared


def _group(held: Sequence[DenseMlp], spec: DecoderSpec, loader: WeightLoader) -> GroupedExperts | None:
    """The experts as two products, where the backend computes them so."""
    return loader.kernels.packer.group_experts(
        [each.gate_up for each in held], [each.down for each in held], spec.swiglu
    )


def _expert_features(size: int, parallel: Parallel) -> Shard:
    """This rank's inner features of an expert that it holds."""
    if parallel.expert_parallel:
        return parallel.undivided(size)
    return parallel.share(size, "intermediate features")


def _load_stacked_expert(name: str, expert: int, spec: DecoderSpec, loader: WeightLoader) -> DenseMlp:
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
