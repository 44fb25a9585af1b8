"""A layer's mixing of tokens by a gated delta rule (Gated DeltaNet, Yang et al. 2024), as Qwen3-Next has it.

It keeps one state a sequence, whatever the sequence's length, beside the KV cache of the layers that attend.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.costs.decoder import DeltaDimensions
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.kernels.delta import DeltaPlan, DeltaWeights
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.attention import LayerStep
from kvarn.models.parallel import Shard
from kvarn.models.spec import DecoderSpec
from kvarn.models.weights import Grouped, LinearSpec, WeightLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Stands in the place of an `Attention`; its layers are counted by themselves in the cache."""

    dims: DeltaDimensions
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
    """The one whose tensors' names begin with `prefix`."""
    dims = spec.delta
    assert dims is not None
    hidden, shared = Shard.whole(spec.hidden_size), dims.value_heads // dims.key_heads
    values = shared * dims.value_dim
    by_head = Grouped(groups=dims.key_heads, sizes=(dims.key_dim, dims.key_dim, values, values))
    inputs = LinearSpec(
        names=(f"{prefix}.in_proj_qkvz",),
        outputs=(Shard.whole(dims.channels + dims.value_features),),
        inputs=hidden,
        interleaved=(by_head,),
    )
    rates = LinearSpec(
        names=(f"{prefix}.in_proj_ba",),
        outputs=(Shard.whole(2 * dims.value_heads),),
        inputs=hidden,
        interleaved=(Grouped(groups=dims.key_heads, sizes=(shared, shared)),),
        role="router",
    )
    output = LinearSpec(names=(f"{prefix}.out_proj",), outputs=(hidden,), inputs=Shard.whole(dims.value_features))
    device = loader.kernels.device

    def by_value_head(name: str) -> torch.Tensor:
        return loader.plain(f"{prefix}.{name}", (dims.value_heads,)).float().to(device)

    convolution = loader.plain(f"{prefix}.conv1d.weight", (dims.channels, 1, dims.window)).float()
    return DeltaNet(
        dims=dims,
        kernels=loader.kernels,
        inputs=loader.linear(inputs),
        rates=loader.linear(rates),
        weights=DeltaWeights(
            convolution=convolution[:, 0].T.contiguous().to(device),
            decay=-by_value_head("A_log").exp(),
            decay_bias=by_value_head("dt_bias"),
            norm=loader.norm(f"{prefix}.norm", dims.value_dim, spec.norm_eps),
        ),
        output=loader.linear(output),
    )
