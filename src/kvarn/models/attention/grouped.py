"""Grouped-query attention, whole or over a sliding window (`kvarn.shapes.attention.grouped`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.attention import AttentionLayer, AttentionMetadata
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention.base import Attention, LayerStep, PlainAttention, Products
from kvarn.models.attention.context_parallel import plan_attention
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Parallel
from kvarn.shapes import KvDtype
from kvarn.shapes.attention import GroupedDimensions
from kvarn.specs.attention import GroupedProducts, row_orders
from kvarn.specs.families.family import LayerNames
from kvarn.specs.place import Shard
from kvarn.specs.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention(Attention):
    spec: DecoderSpec
    dims: GroupedDimensions
    """Sizes of all ranks together."""
    heads: HeadShape
    """Heads of this rank."""
    operations: Operations
    parallel: Parallel
    joint_norm: Norm | None
    """Norm over all heads, weight [features of all ranks' query and key heads]; or layer norms of the heads."""
    layer: AttentionLayer
    qkv: Linear
    output: Linear

    @property
    def products(self) -> Products:
        return self.qkv, self.output

    @property
    def plain(self) -> PlainAttention | None:
        if self.joint_norm is not None or self.dims.gated or self.layer.sinks is not None:
            return None
        return PlainAttention(self.heads, self.qkv, self.layer.norm, self.output)

    def new_cache(self, num_layers: int, num_blocks: int, num_states: int, dtype: KvDtype) -> KVCache:
        return self.operations.new_kv_cache(num_layers, num_blocks, self.heads, dtype)

    def plan(self, batch: PagedBatch) -> AttentionMetadata:
        return plan_attention(self.operations, batch, self.heads, self.dims.sliding_window)

    def forward(
        self, x: torch.Tensor, norm: Norm | None, add_to: torch.Tensor | None, layer: int, step: LayerStep
    ) -> torch.Tensor:
        qkv, gates = self.qkv(x, norm=norm, adapters=step.adapters), None
        if self.dims.gated:
            qkv, gates = self._without_gates(qkv)
        if self.spec.qk_norm == "full":
            self._norm_all_heads(qkv)
        elif self.spec.qk_norm == "layer":
            self._layer_norm_heads(qkv)
        mixed = step.plan.run(qkv, step.rotation, self.layer, step.cache.keys[layer], step.cache.values[layer])
        if gates is not None:
            mixed *= self.operations.activation(gates, "sigmoid")
        return self.output(mixed, add_to=add_to, adapters=step.adapters)

    def _layer_norm_heads(self, qkv: torch.Tensor) -> None:
        """Norm each query and key head, in place, in float32. Torch norms each row by itself."""
        assert self.joint_norm is not None
        norm, heads = self.joint_norm, self.heads
        part = qkv[:, : (heads.query + heads.kv) * heads.dim]
        rows = part.float().view(len(qkv), -1, heads.dim)
        normed = F.layer_norm(rows, (heads.dim,), eps=norm.eps) * norm.weight
        part.copy_(normed.flatten(1))

    def _without_gates(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, keys and values side by side, and the gates, which stand behind the queries."""
        size = self.heads.query * self.heads.dim
        return torch.cat([joined[:, :size], joined[:, 2 * size :]], -1), joined[:, size : 2 * size].contiguous()

    def _norm_all_heads(self, qkv: torch.Tensor) -> None:
        """Norm, in place, over all heads of a token. A rank has only some: it gathers the others to norm them all."""
        assert self.joint_norm is not None
        norm, dim, dims = self.joint_norm, self.heads.dim, self.dims
        split = dims.num_heads * dim
        start = 0
        for own, total, weight in (
            (self.heads.query, dims.num_heads, norm.weight[:split]),
            (self.heads.kv, dims.num_kv_heads, norm.weight[split:]),
        ):
            part = qkv[:, start : start + own * dim]
            start += own * dim
            if own == total:
                part.copy_(self.operations.rms_norm(part, Norm(weight, norm.eps)))
                continue
            gathered = self.parallel.all_gather(part.contiguous())
            # Heads that several ranks hold come once for each of them.
            heads = gathered.view(len(gathered), -1, dim)[:, :: own * self.parallel.world_size // total]
            normed = self.operations.rms_norm(heads.flatten(1), Norm(weight, norm.eps))
            first = self.parallel.rank * total // self.parallel.world_size * dim
            part.copy_(normed[:, first : first + own * dim])


def load_grouped(
    prefix: str, dims: GroupedDimensions, spec: DecoderSpec, names: LayerNames, loader: WeightLoader
) -> GroupedAttention:
    parallel = loader.parallel
    own = GroupedProducts.of(prefix, dims, spec, names, parallel)
    query, kv = own.query, own.kv
    norm = _load_query_key_norm(prefix, dims, spec, names, loader, query, kv)
    sinks = _load_sinks(prefix + names.sinks, query, loader) if spec.sinks else None
    by_head = norm if spec.qk_norm == "head" else None
    return GroupedAttention(
        spec=spec,
        dims=dims,
        heads=HeadShape(len(query.held), len(kv.held), dims.head_dim),
        operations=loader.kernels.operations,
        parallel=parallel,
        joint_norm=norm if by_head is None else None,
        layer=AttentionLayer(spec.attention_scale, by_head, spec.attention_softcap, sinks),
        qkv=loader.linear(own.qkv),
        output=loader.linear(own.output),
    )


def _load_sinks(name: str, heads: Shard, loader: WeightLoader) -> torch.Tensor:
    held = loader.plain(name, (heads.size,))[heads.held.start : heads.held.stop]
    return held.float().contiguous().to(loader.device)


def _load_query_key_norm(
    prefix: str,
    dims: GroupedDimensions,
    spec: DecoderSpec,
    names: LayerNames,
    loader: WeightLoader,
    query: Shard,
    kv: Shard,
) -> Norm | None:
    if spec.qk_norm == "none":
        return None
    weights, dim = [], dims.head_dim
    for name, heads in ((names.query_norm, query), (names.key_norm, kv)):
        match spec.qk_norm:
            case "head":
                weight = loader.norm(prefix + name, dim, spec.norm_eps, spec.norm_offset).weight
                weights.append(weight.expand(len(heads.held), -1))
            case "full":
                weights.append(loader.norm(prefix + name, heads.size * dim, spec.norm_eps, spec.norm_offset).weight)
            case "layer":
                weight = loader.plain(f"{prefix}{name}.weight", (heads.size, dim))
                weight = weight[heads.held.start : heads.held.stop].float()
                order = next(iter(row_orders(dims, spec, loader.parallel.world_size)), None)
                weight = weight if order is None else weight[:, torch.from_numpy(order.order(dim))]
                weights.append(weight.to(loader.device))
    return Norm(torch.cat(weights), spec.norm_eps)
