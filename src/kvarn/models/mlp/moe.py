"""A mixture of experts in place of a dense MLP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention import LayerStep
from kvarn.models.families.family import LayerNames
from kvarn.models.loading.weights import LinearSpec, Role, WeightLoader
from kvarn.models.mlp.dense import DenseMlp, load_stacked_expert
from kvarn.models.mlp.experts import Experts
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """A router that sends each token to a few experts (Shazeer et al. 2017), and perhaps one that all visit."""

    spec: DecoderSpec
    operations: Operations
    router: Linear
    choice_bias: torch.Tensor | None  # [experts] float32: see `RouterSpec.choice_bias`
    experts: Experts
    shared: DenseMlp | None
    shared_gate: Linear | None
    """Scales the shared expert's answer by a sigmoid of its own."""

    @property
    def nbytes(self) -> int:
        parts = (self.router, self.experts, self.shared, self.shared_gate)
        return sum(part.nbytes for part in parts if part is not None)

    @staticmethod
    def load(index: int, prefix: str, spec: DecoderSpec, names: LayerNames, loader: WeightLoader) -> MoeMlp:

        def gate(name: str, outputs: int, bias: bool = False) -> Linear:
            shard, hidden = Shard.whole(outputs), Shard.whole(spec.hidden_size)
            names = (prefix + name,)
            return loader.linear(LinearSpec(names=names, outputs=(shard,), inputs=hidden, bias=bias, role="router"))

        def mlp(name: str, intermediate_size: int, role: Role) -> DenseMlp:
            return DenseMlp.load(prefix + name, intermediate_size, spec, names, loader, role)

        shared_size, parallel = spec.shared_expert_size, loader.parallel
        placement = parallel.expert_placement(index, spec.num_experts)
        held = tuple(
            load_stacked_expert(prefix + names.experts, expert, spec, loader)
            if spec.stacked_experts
            else mlp(f"{names.experts}.{expert}", spec.expert_size, "expert")
            for expert in placement.held(parallel.rank)
        )
        products = [each.gate_up for each in held], [each.down for each in held]
        together = parallel.world_size == 1
        grouped = loader.kernels.packer.group_experts(*products, spec.swiglu) if together else None
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
                grouped=grouped,
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
