"""A layer's mixing of tokens by a gated delta rule (Gated DeltaNet, Yang et al. 2024), as Qwen3-Next has it.

It keeps one state a sequence, whatever the sequence's length, beside the KV cache of the layers that attend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvarn.costs.decoder import DeltaDimensions
from kvarn.kernels.batch import KVCache, PagedBatch, StateCache
from kvarn.kernels.delta import DeltaPlan, DeltaWeights
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Kernels
from kvarn.models.attention.grouped import LayerStep
from kvarn.models.loading.weights import Grouped, LinearSpec, WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Stands in the place of an `Attention`; its layers are counted by themselves in the cache."""

    dims: DeltaDimensions
    """Of this rank's heads."""
    kernels: Kernels
    inputs: Linear
    """To queries, keys and values by heads, then the output's gates."""
    rates: Linear
    weights: DeltaWeights
    output: Linear

    @property
    def nbytes(self) -> int:
        """Bytes of its products as they are held."""
        return self.inputs.nbytes + self.rates.nbytes + self.output.nbytes

    @property
    def input_product(self) -> Linear:
        """Its first product, which takes the hidden state."""
        return self.inputs

    def new_states(self, num_layers: int, num_places: int) -> StateCache:
        """Empty states for so many layers like this one."""
        return self.kernels.new_states(num_layers, num_places, self.dims)

    def plan(self, batch: PagedBatch, window: int | None) -> DeltaPlan:
        """See `Attention`."""
        return self.kernels.plan_delta(batch, self.dims)

    def forward(
        self,
        x: torch.Tensor,
        norm: Norm | None,
        add_to: torch.Tensor | None,
        cache: KVCache,
        layer: int,
        step: LayerStep,
    ) -> torch.Tensor:
        """See `Attention`. Raises ValueError where the cache was made without states."""
        if cache.recurrent_states is None:
            raise ValueError("the model has recurrent states: make its cache with room for some")
        projected = self.inputs(x, norm=norm, adapters=step.adapters)
        mixed = step.plan.run(projected, self.rates(x, norm=norm), self.weights, cache.recurrent_states, layer)
        return self.output(mixed, add_to=add_to, adapters=step.adapters)


def load_delta_net(prefix: str, spec: DecoderSpec, loader: WeightLoader) -> DeltaNet:
    """The one whose tensors' names begin with `prefix`, this rank's heads of it."""
    whole = spec.delta
    assert whole is not None
    key = loader.parallel.share(whole.key_heads, "key heads of the delta rule")
    value = loader.parallel.share(whole.value_heads, "value heads of the delta rule")
    keys, values, hidden = key.times(whole.key_dim), value.times(whole.value_dim), Shard.whole(spec.hidden_size)
    shared = whole.value_heads // whole.key_heads
    by_head = (whole.key_dim, whole.key_dim, shared * whole.value_dim, shared * whole.value_dim)
    inputs = LinearSpec(
        names=(f"{prefix}.in_proj_qkvz",),
        outputs=(keys, keys, values, values),
        inputs=hidden,
        interleaved=(Grouped(groups=whole.key_heads, sizes=by_head),),
    )
    rates = LinearSpec(
        names=(f"{prefix}.in_proj_ba",),
        outputs=(value, value),
        inputs=hidden,
        interleaved=(Grouped(groups=whole.key_heads, sizes=(shared, shared)),),
        role="router",
    )
    output = LinearSpec(names=(f"{prefix}.out_proj",), outputs=(hidden,), inputs=values)
    device = loader.kernels.device

    def by_value_head(name: str) -> torch.Tensor:
        held = loader.plain(f"{prefix}.{name}", (whole.value_heads,))[value.held.start : value.held.stop]
        return held.float().to(device)

    convolution = loader.plain(f"{prefix}.conv1d.weight", (whole.channels, 1, whole.window)).float()
    parts = torch.split(convolution[:, 0], [keys.size, keys.size, values.size])
    held = [part[of.held.start : of.held.stop] for part, of in zip(parts, (keys, keys, values), strict=True)]
    return DeltaNet(
        dims=replace(whole, key_heads=len(key.held), value_heads=len(value.held)),
        kernels=loader.kernels,
        inputs=loader.linear(inputs),
        rates=loader.linear(rates),
        weights=DeltaWeights(
            convolution=torch.cat(held).T.contiguous().to(device),
            decay=-by_value_head("A_log").exp(),
            decay_bias=by_value_head("dt_bias"),
            norm=loader.norm(f"{prefix}.norm", whole.value_dim, spec.norm_eps),
        ),
        output=loader.linear(output),
    )
