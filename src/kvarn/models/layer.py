"""One decoder layer: its weights and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import HeadShape, Rotation
from kvarn.kernels.dispatch import AttentionPlan, Kernels
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.families import LayerNames
from kvarn.models.moe import DenseMlp, MoeMlp
from kvarn.models.parallel import Parallel
from kvarn.models.spec import DecoderSpec, LayerSpec
from kvarn.models.weights import Output, Projection, WeightLoader


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What all layers of one kind share in one step."""

    plan: AttentionPlan
    rotation: Rotation


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

    @property
    def shape(self) -> HeadShape:
        """How many there are, and their size."""
        return HeadShape(len(self.query), len(self.kv), self.dim)

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
    attention_input_norm: Norm | None
    attention_output_norm: Norm | None
    mlp_input_norm: Norm | None
    mlp_output_norm: Norm | None
    query_key_norm: Norm | None
    """Weight per head: [query heads + key heads, D]. Full: [features of both]."""
    qkv: Linear
    output: Linear
    mlp: DenseMlp | MoeMlp

    @property
    def nbytes(self) -> int:
        """Bytes of this layer's products as they are held."""
        return self.qkv.nbytes + self.output.nbytes + self.mlp.nbytes

    def forward(
        self, hidden: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, step: LayerStep
    ) -> torch.Tensor:
        """The residual stream [T, hidden] after this layer; it is changed in place."""
        mixed = self._attention(hidden, key_cache, value_cache, step)
        add_to = self._sum_target(hidden, self.attention_output_norm)
        hidden = self._add(hidden, self.output(mixed, add_to=add_to), self.attention_output_norm)
        add_to = self._sum_target(hidden, self.mlp_output_norm)
        x = self.mlp.forward(hidden, self.kernels, self.mlp_input_norm, add_to)
        return self._add(hidden, x, self.mlp_output_norm)

    def _sum_target(self, hidden: torch.Tensor, output_norm: Norm | None) -> torch.Tensor | None:
        """The residual stream, where the last product of a half may add to it at once."""
        return hidden if output_norm is None and self.parallel.world_size == 1 else None

    def _add(self, hidden: torch.Tensor, x: torch.Tensor, output_norm: Norm | None) -> torch.Tensor:
        """The stream with a half's output x added, unless it was added already."""
        if x is hidden:
            return hidden
        x = self.parallel.all_reduce(x)
        return hidden.add_(x) if output_norm is None else self.kernels.rms_norm(x, output_norm, add_to=hidden)

    def _attention(
        self, hidden: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, step: LayerStep
    ) -> torch.Tensor:
        qkv = self.qkv(hidden, norm=self.attention_input_norm)
        norm = self.query_key_norm
        if self.spec.qk_norm == "full":
            self._norm_all_heads(qkv)
            norm = None
        return self.kernels.paged_attention(
            qkv,
            self.heads.shape,
            step.rotation,
            norm,
            key_cache,
            value_cache,
            step.plan,
            self.spec.attention_scale,
            self.spec.attention_softcap,
        )

    def _norm_all_heads(self, qkv: torch.Tensor) -> None:
        """Norm, in place, over all heads of a token. A rank sees only its own heads: squares are summed over ranks."""
        assert self.query_key_norm is not None
        weight, eps = self.query_key_norm.weight, self.query_key_norm.eps
        split, end = len(self.heads.query) * self.heads.dim, len(weight)
        query, key = qkv[:, :split], qkv[:, split:end]
        if self.parallel.world_size == 1:
            query.copy_(self.kernels.rms_norm(query, Norm(weight[:split], eps)))
            key.copy_(self.kernels.rms_norm(key, Norm(weight[split:], eps)))
            return
        squares = torch.stack([query.float().square().sum(-1), key.float().square().sum(-1)])
        repeats = len(self.heads.kv) * self.parallel.world_size / self.spec.num_kv_heads
        totals = torch.tensor([self.spec.num_heads, self.spec.num_kv_heads * repeats], device=squares.device)
        means = (self.parallel.all_reduce(squares) / (totals[:, None] * self.spec.head_dim)).unsqueeze(-1)
        query.copy_(self.kernels.rms_norm(query, Norm(weight[:split], eps), mean_square=means[0]))
        key.copy_(self.kernels.rms_norm(key, Norm(weight[split:], eps), mean_square=means[1]))


def load_layer(
    index: int, spec: DecoderSpec, names: LayerNames, loader: WeightLoader, kernels: Kernels, parallel: Parallel
) -> DecoderLayer:
    """Layer `index` of a checkpoint, this rank's part of it."""
    prefix = f"model.layers.{index}."
    heads = Heads.of(spec, parallel)

    def norm(name: str | None) -> Norm | None:
        if name is None:
            return None
        return Norm(loader.norm(prefix + name, spec.hidden_size, spec.norm_offset), spec.norm_eps)

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
) -> Norm | None:
    query, key = prefix + names.query_norm, prefix + names.key_norm
    if spec.qk_norm == "head":
        query_norm = loader.norm(query, spec.head_dim, spec.norm_offset).expand(len(heads.query), -1)
        key_norm = loader.norm(key, spec.head_dim, spec.norm_offset).expand(len(heads.kv), -1)
        return Norm(torch.cat([query_norm, key_norm]), spec.norm_eps)
    if spec.qk_norm == "full":
        query_norm = loader.norm(query, spec.num_heads * spec.head_dim, spec.norm_offset, heads.features(heads.query))
        key_norm = loader.norm(key, spec.num_kv_heads * spec.head_dim, spec.norm_offset, heads.features(heads.kv))
        return Norm(torch.cat([query_norm, key_norm]), spec.norm_eps)
    return None
