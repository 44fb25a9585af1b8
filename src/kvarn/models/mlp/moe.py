"""A mixture of experts in place of a dense MLP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention import LayerStep
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.mlp.dense import ClampedSwiglu, DenseMlp
from kvarn.models.mlp.experts import Experts
from kvarn.specs.families.family import LayerNames
from kvarn.specs.mlp import MoeProducts, expert_products
from kvarn.specs.spec import DecoderSpec


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
        parallel = loader.parallel
        own = MoeProducts.of(prefix, spec, names, parallel)
        placement = parallel.expert_placement(index, spec.num_experts)
        gate = ClampedSwiglu(loader.kernels.operations, *spec.swiglu) if spec.swiglu else None
        held = tuple(
            DenseMlp.load(expert_products(prefix, expert, spec, names, parallel), loader, gate)
            for expert in placement.held(parallel.rank)
        )
        products = [each.gate_up for each in held], [each.down for each in held]
        together = parallel.world_size == 1
        grouped = loader.kernels.packer.group_experts(*products, spec.swiglu) if together else None
        return MoeMlp(
            spec=spec,
            operations=loader.kernels.operations,
            router=loader.linear(own.router),
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
            shared=None if own.shared is None else DenseMlp.load(own.shared, loader),
            shared_gate=None if own.shared_gate is None else loader.linear(own.shared_gate),
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
