"""A layer's mixing of tokens by a gated delta rule (Gated DeltaNet, Yang et al. 2024), as Qwen3-Next has it.

It keeps one state a sequence, whatever the sequence's length, beside the KV cache of the layers that attend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.kernels.delta import DeltaMetadata, DeltaWeights
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention.base import Attention, LayerStep, Products
from kvarn.models.loading.weights import WeightLoader
from kvarn.shapes import KvDtype
from kvarn.shapes.attention import DeltaDimensions
from kvarn.specs.attention import DeltaProducts
from kvarn.specs.families.family import LayerNames
from kvarn.specs.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet(Attention):
    dims: DeltaDimensions
    """Sizes of this rank's heads."""
    operations: Operations
    inputs: Linear
    """To queries, keys and values by heads, then the output's gates."""
    rates: Linear
    weights: DeltaWeights
    output: Linear

    @property
    def products(self) -> Products:
        return self.inputs, self.rates, self.output

    def new_cache(self, num_layers: int, num_blocks: int, num_states: int, dtype: KvDtype) -> KVCache:
        return KVCache((), (), self.operations.new_states(num_layers, num_states, self.dims))

    def plan(self, batch: PagedBatch) -> DeltaMetadata:
        return self.operations.plan_delta(batch, self.dims)

    def forward(
        self, x: torch.Tensor, norm: Norm | None, add_to: torch.Tensor | None, layer: int, step: LayerStep
    ) -> torch.Tensor:
        """See `Attention`. Raises ValueError where the cache was made without states."""
        states = step.cache.recurrent_states
        if states is None:
            raise ValueError("the model has recurrent states: make its cache with room for some")
        projected = self.inputs(x, norm=norm, adapters=step.adapters)
        mixed = step.plan.run(projected, self.rates(x, norm=norm), self.weights, states, layer)
        return self.output(mixed, add_to=add_to, adapters=step.adapters)


def load_delta(
    prefix: str, whole: DeltaDimensions, spec: DecoderSpec, names: LayerNames, loader: WeightLoader
) -> DeltaNet:
    prefix += names.delta
    own = DeltaProducts.of(prefix, whole, spec, loader.parallel)
    key, value = own.key, own.value
    keys, values = key.times(whole.key_dim), value.times(whole.value_dim)
    device = loader.device

    def by_value_head(name: str) -> torch.Tensor:
        held = loader.plain(f"{prefix}.{name}", (whole.value_heads,))[value.held.start : value.held.stop]
        return held.float().to(device)

    convolution = loader.plain(f"{prefix}.conv1d.weight", (whole.channels, 1, whole.window)).float()
    parts = torch.split(convolution[:, 0], [keys.size, keys.size, values.size])
    held = [part[of.held.start : of.held.stop] for part, of in zip(parts, (keys, keys, values), strict=True)]
    return DeltaNet(
        dims=replace(whole, key_heads=len(key.held), value_heads=len(value.held)),
        operations=loader.kernels.operations,
        inputs=loader.linear(own.inputs),
        rates=loader.linear(own.rates),
        weights=DeltaWeights(
            convolution=torch.cat(held).T.contiguous().to(device),
            decay=-by_value_head("A_log").exp(),
            decay_bias=by_value_head("dt_bias"),
            norm=loader.norm(f"{prefix}.norm", whole.value_dim, spec.norm_eps),
        ),
        output=loader.linear(own.output),
    )
