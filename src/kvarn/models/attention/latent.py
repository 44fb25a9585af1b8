"""Multi-head latent attention (DeepSeek-V2 2024): a token's keys and values are cached as one row that all heads share.

The row is the compressed key and value (`rank` numbers, normed) and a rotated key (`rope_dim` numbers). Heads read it
in the absorbed form, in prefill and in decode: the product that would make a head's keys of the row is applied to its
query, and the one that would make its values to what it has gathered. So the cache is never widened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.attention import LatentMetadata
from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.kernels.linear import HeadProducts, Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.kernels.torch.attention import rotate
from kvarn.models.attention.base import Attention, LayerStep, Products
from kvarn.models.attention.context_parallel import plan_latent
from kvarn.models.loading.weights import WeightLoader
from kvarn.shapes import KvDtype
from kvarn.shapes.attention import LatentDimensions
from kvarn.specs.attention import LatentProducts
from kvarn.specs.families.family import LayerNames
from kvarn.specs.spec import DecoderSpec

_NORM_EPS = 1e-6
"""Epsilon of the norms inside the attention, whatever config.json says of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Attention):
    dims: LatentDimensions
    """Sizes of all ranks together."""
    num_heads: int
    """Heads of this rank; the cached row is the same on all."""
    scale: float
    operations: Operations
    query_norm: Norm | None
    row_norm: Norm
    down: Linear
    """To the row, before it the compressed query where queries are compressed."""
    query: Linear
    """Product of the hidden state, or of the compressed query."""
    key_products: HeadProducts
    """A head's query to what it multiplies rows with."""
    value_products: HeadProducts
    output: Linear

    @property
    def products(self) -> Products:
        return self.down, self.query, self.key_products, self.value_products, self.output

    def new_cache(self, num_layers: int, num_blocks: int, num_states: int, dtype: KvDtype) -> KVCache:
        return self.operations.new_latent_cache(num_layers, num_blocks, self.dims.row_size, dtype)

    def plan(self, batch: PagedBatch) -> LatentMetadata:
        return plan_latent(self.operations, batch, self.num_heads, self.dims.row_size)

    def forward(
        self, x: torch.Tensor, norm: Norm | None, add_to: torch.Tensor | None, layer: int, step: LayerStep
    ) -> torch.Tensor:
        dims, rank = self.dims, self.dims.rank
        down = self.down(x, norm=norm, adapters=step.adapters)
        compressed, row = down[:, : dims.query_rank], down[:, dims.query_rank :]
        if self.query_norm is None:
            queries = self.query(x, norm=norm, adapters=step.adapters)
        else:
            queries = self.query(compressed, norm=self.query_norm, adapters=step.adapters)
        queries = queries.view(len(x), self.num_heads, -1)
        plain, rotated = queries[..., : dims.plain_dim], queries[..., dims.plain_dim :]
        queries = torch.cat([self.key_products(plain), rotate(rotated, step.rotation)], -1)
        key = rotate(row[:, None, rank:], step.rotation)[:, 0]
        rows = torch.cat([self.operations.rms_norm(row[:, :rank].contiguous(), self.row_norm), key], -1)
        mixed = step.plan.run(queries, rows, step.cache.keys[layer], rank, self.scale)
        mixed = self.value_products(mixed).flatten(1)
        return self.output(mixed, add_to=add_to, adapters=step.adapters)


def load_latent(
    prefix: str, dims: LatentDimensions, spec: DecoderSpec, names: LayerNames, loader: WeightLoader
) -> LatentAttention:
    prefix += "self_attn."
    own = LatentProducts.of(prefix, dims, spec, loader.parallel)
    heads, rank, compressed = own.heads, dims.rank, dims.query_rank
    wide = loader.float_weight(f"{prefix}kv_b_proj", (heads.size * (dims.plain_dim + dims.value_dim), rank))
    wide = wide.view(heads.size, -1, rank)[heads.held.start : heads.held.stop]
    keys, values = wide[:, : dims.plain_dim], wide[:, dims.plain_dim :]
    return LatentAttention(
        dims=dims,
        num_heads=len(heads.held),
        scale=spec.attention_scale,
        operations=loader.kernels.operations,
        query_norm=loader.norm(f"{prefix}q_a_layernorm", compressed, _NORM_EPS) if compressed else None,
        row_norm=loader.norm(f"{prefix}kv_a_layernorm", rank, _NORM_EPS),
        down=loader.linear(own.down),
        query=loader.linear(own.query),
        key_products=loader.kernels.packer.head_products(keys.transpose(1, 2).contiguous()),
        value_products=loader.kernels.packer.head_products(values.contiguous()),
        output=loader.linear(own.output),
    )
