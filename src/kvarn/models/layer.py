"""One decoder layer: its weights and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.attention_plan import AttentionPlan
from kvarn.kernels.dispatch import Kernels
from kvarn.kernels.linear import PackedLinear
from kvarn.models.families import LayerNames
from kvarn.models.moe import DenseMlp, MoeMlp
from kvarn.models.parallel import Parallel
from kvarn.models.spec import DecoderSpec, LayerSpec
from kvarn.models.weights import Output, Projection, WeightLoader


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What all layers of one kind share in one step."""

    plan: AttentionPlan
    cos: torch.Tensor
    """[T, R] float32."""
    sin: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads one rank holds."""

    query: range
    kv: range
    dim: int

    @staticmethod
    def of(spec: DecoderSpec, parallel: Parallel) -> Heads:
        """This rank's heads. Raises ParallelError where they cannot be divided."""
        return Heads(
            query=parallel.share(spec.num_heads, "query heads"),
            kv=parallel.kv_head_share(spec.num_kv_heads),
            dim=spec.head_dim,
        )

    def features(self, heads: range) -> range:
        """The features of these heads."""
        return range(heads.start * self.dim, heads.stop * self.dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Attention and MLP around the residual stream."""

    spec: DecoderSpec
    layer: LayerSpec
    heads: Heads
    kernels: Kernels
    parallel: Parallel
    attention_input_norm: torch.Tensor | None
    attention_output_norm: torch.Tensor | None
    mlp_input_norm: torch.Tensor | None
    mlp_output_norm: torch.Tensor | None
    query_key_norm: torch.Tensor | None
    """Per head: [query heads + key heads, D]. Full: [features of both]."""
    qkv: PackedLinear
    output: PackedLinear
    mlp: DenseMlp | MoeMlp

    def forward(
        self, hidden: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, step: LayerStep
    ) -> torch.Tensor:
        """The residual stream [T, hidden] after this layer."""
        x = self._norm(hidden, self.attention_input_norm)
        x = self.parallel.all_reduce(self._attention(x, key_cache, value_cache, step))
        hidden = hidden + self._norm(x, self.attention_output_norm)
        x = self._norm(hidden, self.mlp_input_norm)
        x = self.parallel.all_reduce(self.mlp.forward(x, self.kernels))
        return hidden + self._norm(x, self.mlp_output_norm)

    def _attention(
        self, x: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, step: LayerStep
    ) -> torch.Tensor:
        num_queries, num_kv, dim = len(self.heads.query), len(self.heads.kv), self.heads.dim
        qkv = self.kernels.linear(x, self.qkv)
        query_key = qkv[:, : (num_queries + num_kv) * dim]
        if self.spec.qk_norm == "full":
            query_key = self._full_query_key_norm(query_key, num_queries * dim)
        query_key = query_key.view(-1, num_queries + num_kv, dim)
        if self.spec.qk_norm == "head":
            query_key = self._norm(query_key, self.query_key_norm)
        query_key = self.kernels.rope(query_key, step.cos, step.sin)
        queries, keys = query_key[:, :num_queries], query_key[:, num_queries:]
        values = qkv[:, (num_queries + num_kv) * dim :].view(-1, num_kv, dim)
        self.kernels.write_kv(keys, values, key_cache, value_cache, step.plan)
        mixed = self.kernels.paged_attention(
            queries, key_cache, value_cache, step.plan, self.spec.attention_scale, self.spec.attention_softcap
        )
        return self.kernels.linear(mixed.flatten(1), self.output)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else self.kernels.rms_norm(x, weight, self.spec.norm_eps)

    def _full_query_key_norm(self, query_key: torch.Tensor, split: int) -> torch.Tensor:
        """A norm over all heads of a token, of which a rank sees only its own: their squares are summed over ranks."""
        assert self.query_key_norm is not None
        query, key = query_key[:, :split], query_key[:, split:]
        squares = torch.stack([query.float().square().sum(-1), key.float().square().sum(-1)])
        repeats = len(self.heads.kv) * self.parallel.world_size / self.spec.num_kv_heads
        totals = torch.tensor([self.spec.num_heads, self.spec.num_kv_heads * repeats], device=squares.device)
        means = (self.parallel.all_reduce(squares) / (totals[:, None] * self.spec.head_dim)).unsqueeze(-1)
        return torch.cat(
            [
                self.kernels.rms_norm(query, self.query_key_norm[:split], self.spec.norm_eps, means[0]),
                self.kernels.rms_norm(key, self.query_key_norm[split:], self.spec.norm_eps, means[1]),
            ],
            -1,
        )


def load_layer(
    index: int, spec: DecoderSpec, names: LayerNames, loader: WeightLoader, kernels: Kernels, parallel: Parallel
) -> DecoderLayer:
    """Layer `index` of a checkpoint, this rank's part of it."""
    prefix = f"model.layers.{index}."
    heads = Heads.of(spec, parallel)

    def norm(name: str | None) -> torch.Tensor | None:
        return None if name is None else loader.norm(prefix + name, spec.hidden_size, spec.norm_offset)

    query = Output(spec.num_heads * spec.head_dim, heads.features(heads.query))
    key_value = Output(spec.num_kv_heads * spec.head_dim, heads.features(heads.kv))
    hidden = Output(spec.hidden_size, range(spec.hidden_size))
    qkv = Projection(
        names=tuple(prefix + name for name in names.qkv),
        outputs=(query, key_value, key_value),
        inputs=spec.hidden_size,
        bias=spec.qkv_bias,
    )
    output = Projection(
        names=(prefix + names.output,),
        outputs=(hidden,),
        inputs=query.features,
        held_inputs=query.held,
        bias=spec.output_bias,
    )
    layer = spec.layers[index]
    return DecoderLayer(
        spec=spec,
        layer=layer,
        heads=heads,
        kernels=kernels,
        parallel=parallel,
        attention_input_norm=norm(names.attention_input_norm),
        attention_output_norm=norm(names.attention_output_norm),
        mlp_input_norm=norm(names.mlp_input_norm),
        mlp_output_norm=norm(names.mlp_output_norm),
        query_key_norm=_load_query_key_norm(prefix, spec, names, loader, heads),
        qkv=loader.linear(qkv),
        output=loader.linear(output),
        mlp=MoeMlp.load(prefix, spec, layer.moe, names, loader, parallel)
        if layer.moe is not None
        else DenseMlp.load(prefix + names.mlp, spec.intermediate_size, spec, names, loader, parallel),
    )


def _load_query_key_norm(
    prefix: str, spec: DecoderSpec, names: LayerNames, loader: WeightLoader, heads: Heads
) -> torch.Tensor | None:
    query, key = prefix + names.query_norm, prefix + names.key_norm
    if spec.qk_norm == "head":
        query_norm = loader.norm(query, spec.head_dim, spec.norm_offset).expand(len(heads.query), -1)
        key_norm = loader.norm(key, spec.head_dim, spec.norm_offset).expand(len(heads.kv), -1)
        return torch.cat([query_norm, key_norm])
    if spec.qk_norm == "full":
        query_norm = loader.norm(query, spec.num_heads * spec.head_dim, spec.norm_offset, heads.features(heads.query))
        key_norm = loader.norm(key, spec.num_kv_heads * spec.head_dim, spec.norm_offset, heads.features(heads.kv))
        return torch.cat([query_norm, key_norm])
    return None
