"""The feed-forward half of a layer: one dense MLP, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.backend import Kernels
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.families import LayerNames
from kvarn.models.parallel import Parallel, Shard
from kvarn.models.router import route
from kvarn.models.row_parallel import RowParallelLinear
from kvarn.models.spec import DecoderSpec
from kvarn.models.swiglu import ClampedSwiglu
from kvarn.models.weights import Interleaved, LinearSpec, Role, WeightLoader


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(activation(gate(x)) * up(x))."""

    gate_up: Linear
    down: Linear
    gate: ClampedSwiglu | None = None
    """What joins gate and up; None: their product does."""

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
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """x [T, hidden], `norm` applied to it, to [T, hidden]; added in place to `add_to` where given."""
        return self.down(self._gated(x, norm, adapters), add_to=add_to, adapters=adapters)

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """What this rank has of the result [T, hidden]: all of it, or its part of the sum over ranks."""
        inner = self._gated(x)
        return self.down.partial(inner) if isinstance(self.down, RowParallelLinear) else self.down(inner)

    def _gated(self, x: torch.Tensor, norm: Norm | None = None, adapters: AdapterBatch | None = None) -> torch.Tensor:
        inner = self.gate_up(x, norm=norm, adapters=adapters)
        return inner if self.gate is None else self.gate(inner)


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """A router that sends each token to a few experts (Shazeer et al. 2017), and perhaps one that all visit."""

    spec: DecoderSpec
    kernels: Kernels
    parallel: Parallel
    router: Linear
    choice_bias: torch.Tensor | None
    """[experts] float32: see `RouterSpec.choice_bias`."""
    experts: tuple[DenseMlp, ...]
    """Those of this rank: `Parallel.expert_share` of all, or its part of each."""
    shared: DenseMlp | None
    shared_gate: Linear | None
    """Scales the shared expert's answer by a sigmoid of its own."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its products, every expert's included."""
        shared = (self.shared, self.shared_gate)
        return self.router.nbytes + sum(part.nbytes for part in (*self.experts, *shared) if part is not None)

    @staticmethod
    def load(prefix: str, spec: DecoderSpec, names: LayerNames, loader: WeightLoader) -> MoeMlp:
        """The mixture of the layer whose tensors' names begin with `prefix`."""

        def gate(name: str, outputs: int, bias: bool = False) -> Linear:
            shard, hidden = Shard.whole(outputs), Shard.whole(spec.hidden_size)
            names = (prefix + name,)
            return loader.linear(LinearSpec(names=names, outputs=(shard,), inputs=hidden, bias=bias, role="router"))

        def mlp(name: str, intermediate_size: int, role: Role) -> DenseMlp:
            return DenseMlp.load(prefix + name, intermediate_size, spec, names, loader, role)

        shared_size, parallel = spec.shared_expert_size, loader.parallel
        held = parallel.expert_share(spec.num_experts)[parallel.rank]
        return MoeMlp(
            spec=spec,
            kernels=loader.kernels,
            parallel=parallel,
            router=gate(names.router, spec.num_experts, spec.router.bias),
            choice_bias=loader.plain(prefix + names.choice_bias, (spec.num_experts,)).float().to(loader.kernels.device)
            if spec.router.choice_bias
            else None,
            experts=tuple(
                _load_stacked_expert(prefix + names.experts, e, spec, loader)
                if spec.stacked_experts
                else mlp(f"{names.experts}.{e}", spec.expert_size, "expert")
                for e in held
            ),
            shared=mlp(names.shared_expert, shared_size, "layer") if shared_size else None,
            shared_gate=gate(names.shared_expert_gate, 1) if shared_size and names.shared_expert_gate else None,
        )

    def forward(
        self,
        x: torch.Tensor,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """As `DenseMlp.forward`. Each expert that is hit runs once, over all of its tokens; adapters change the shared
        one alone."""
        if norm is not None:
            x = self.kernels.rms_norm(x, norm)
        shares, chosen = route(
            self.router(x), self.spec.experts_per_token, self.spec.router, self.choice_bias, self.kernels
        )
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self.spec.experts_per_token
        counts = torch.bincount(chosen.flatten(), minlength=self.spec.num_experts).tolist()
        shares = shares.flatten()[order].unsqueeze(-1)
        mixed = self._visit(x[tokens], counts).float().mul_(shares)
        out = mixed.new_zeros(x.shape).index_add_(0, tokens, mixed)
        if self.shared is not None:
            shared = self.shared.forward(x, adapters=adapters).float()
            if self.shared_gate is not None:
                shared *= self.kernels.activation(self.shared_gate(x).float(), "sigmoid")
            out += shared
        return out.to(x.dtype) if add_to is None else add_to.add_(out)

    def _visit(self, inputs: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The experts' outputs [N, hidden] for N inputs, sorted by expert; the first expert has counts[0] of them.

        Ranks that hold whole experts compute theirs, and each row goes to all. Of experts that are divided each rank
        computes a part of every row. Either way a row's bits are the same.
        """
        if not self.parallel.expert_parallel:
            total = self.parallel.all_reduce(self._visit_held(inputs, counts))
            return self._add_biases(total, counts) if self.parallel.world_size > 1 else total
        shares = self.parallel.expert_share(self.spec.num_experts)
        rows = [sum(counts[held.start : held.stop]) for held in shares]
        rank = self.parallel.rank
        own = inputs[sum(rows[:rank]) : sum(rows[: rank + 1])]
        held = shares[rank]
        return self.parallel.gather_rows(self._visit_held(own, counts[held.start : held.stop]), rows)

    def _visit_held(self, inputs: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        parts = torch.split(inputs, list(counts))
        outputs = [expert.partial(part) for expert, part in zip(self.experts, parts, strict=True) if len(part)]
        return torch.cat(outputs) if outputs else inputs.new_zeros(0, self.spec.hidden_size, dtype=torch.float32)

    def _add_biases(self, total: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The biases of experts whose sums were taken over ranks, in place."""
        parts = torch.split(total, counts)
        for expert, part in zip(self.experts, parts, strict=True):
            bias = expert.down.bias if isinstance(expert.down, RowParallelLinear) else None
            if bias is not None:
                part += bias
        return total


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
    gate = ClampedSwiglu(loader.kernels, *spec.swiglu) if spec.swiglu else None
    return DenseMlp(loader.linear(gate_up), loader.linear(down), gate)
