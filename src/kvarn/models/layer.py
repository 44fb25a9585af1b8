"""One decoder layer: its weights and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.backend import AttentionPlan, Kernels
from kvarn.kernels.batch import HeadShape, Rotation
from kvarn.kernels.greedy import GreedyLayer
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.families import LayerNames
from kvarn.models.moe import DenseMlp, MoeMlp
from kvarn.models.parallel import Parallel, Shard
from kvarn.models.spec import DecoderSpec
from kvarn.models.weights import LinearSpec, WeightLoader


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What all layers of one kind share in one step."""

    plan: AttentionPlan
    rotation: Rotation
    adapters: AdapterBatch | None
    """See `PagedBatch.adapters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Attention and MLP around the residual stream."""

    spec: DecoderSpec
    heads: HeadShape
    kernels: Kernels
    parallel: Parallel
    attention_input_norm: Norm | None
    attention_output_norm: Norm | None
    mlp_input_norm: Norm | None
    mlp_output_norm: Norm | None
    query_key_norm: Norm | None
    """Weight per head of this rank: [query heads + key heads, D]. Full: [features of all ranks' heads of both]."""
    qkv: Linear
    output: Linear
    mlp: DenseMlp | MoeMlp

    @property
    def nbytes(self) -> int:
        """Bytes of this layer's products as they are held."""
        return self.qkv.nbytes + self.output.nbytes + self.mlp.nbytes

    def greedy(self, kind: int) -> GreedyLayer | None:
        """This layer for passes that are compiled as a whole; None where it does more than those compute."""
        if self.attention_output_norm or self.mlp_output_norm or self.spec.qk_norm == "full":
            return None
        if not isinstance(self.mlp, DenseMlp) or self.parallel.divides:
            return None
        return GreedyLayer(
            attention_norm=self.attention_input_norm,
            qkv=self.qkv,
            query_key_norm=self.query_key_norm,
            output=self.output,
            mlp_norm=self.mlp_input_norm,
            gate_up=self.mlp.gate_up,
            down=self.mlp.down,
            kind=kind,
        )

    def forward(
        self, hidden: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, step: LayerStep
    ) -> torch.Tensor:
        """The residual stream [T, hidden] after this layer; it is changed in place."""
        qkv = self.qkv(hidden, norm=self.attention_input_norm, adapters=step.adapters)
        norm = self.query_key_norm
        if self.spec.qk_norm == "full":
            self._norm_all_heads(qkv)
            norm = None
        scale, softcap = self.spec.attention_scale, self.spec.attention_softcap
        mixed = step.plan.run(qkv, step.rotation, norm, key_cache, value_cache, scale, softcap)
        add_to = self._sum_target(hidden, self.attention_output_norm)
        x = self.output(mixed, add_to=add_to, adapters=step.adapters)
        hidden = self._add(hidden, x, self.attention_output_norm)
        add_to = self._sum_target(hidden, self.mlp_output_norm)
        x = self.mlp.forward(hidden, self.mlp_input_norm, add_to, step.adapters)
        return self._add(hidden, x, self.mlp_output_norm)

    def _sum_target(self, hidden: torch.Tensor, output_norm: Norm | None) -> torch.Tensor | None:
        """The residual stream, where the last product of a half may add to it at once."""
        return hidden if output_norm is None else None

    def _add(self, hidden: torch.Tensor, x: torch.Tensor, output_norm: Norm | None) -> torch.Tensor:
        """The stream with a half's output x added, unless it was added already."""
        return x if output_norm is None else self.kernels.rms_norm(x, output_norm, add_to=hidden)

    def _norm_all_heads(self, qkv: torch.Tensor) -> None:
        """Norm, in place, over all heads of a token. A rank has only some: it gathers the others to norm them all."""
        assert self.query_key_norm is not None
        norm, dim, spec = self.query_key_norm, self.heads.dim, self.spec
        split = spec.num_heads * dim
        start = 0
        for own, total, weight in (
            (self.heads.query, spec.num_heads, norm.weight[:split]),
            (self.heads.kv, spec.num_kv_heads, norm.weight[split:]),
        ):
            part = qkv[:, start : start + own * dim]
            start += own * dim
            gathered = self.parallel.all_gather(part.contiguous())
            # Heads that several ranks hold come once for each of them.
            heads = gathered.view(len(gathered), -1, dim)[:, :: own * self.parallel.world_size // total]
            normed = self.kernels.rms_norm(heads.flatten(1), Norm(weight, norm.eps))
            first = self.parallel.rank * total // self.parallel.world_size * dim
            part.copy_(normed[:, first : first + own * dim])


def load_layer(index: int, spec: DecoderSpec, names: LayerNames, loader: WeightLoader) -> DecoderLayer:
    """Layer `index` of a checkpoint, this rank's part of it."""
    prefix = f"model.layers.{index}."
    parallel = loader.parallel
    query, kv = parallel.share(spec.num_heads, "query heads"), parallel.kv_head_share(spec.num_kv_heads)
    query_features, kv_features = query.times(spec.head_dim), kv.times(spec.head_dim)
    hidden = Shard.whole(spec.hidden_size)

    def norm(name: str | None) -> Norm | None:
        return None if name is None else loader.norm(prefix + name, spec.hidden_size, spec.norm_eps, spec.norm_offset)

    qkv = LinearSpec(
        names=tuple(prefix + name for name in names.qkv),
        outputs=(query_features, kv_features, kv_features),
        inputs=hidden,
        bias=spec.qkv_bias,
    )
    output = LinearSpec(names=(prefix + names.output,), outputs=(hidden,), inputs=query_features, bias=spec.output_bias)
    return DecoderLayer(
        spec=spec,
        heads=HeadShape(len(query.held), len(kv.held), spec.head_dim),
        kernels=loader.kernels,
        parallel=parallel,
        attention_input_norm=norm(names.attention_input_norm),
        attention_output_norm=norm(names.attention_output_norm),
        mlp_input_norm=norm(names.mlp_input_norm),
        mlp_output_norm=norm(names.mlp_output_norm),
        query_key_norm=_load_query_key_norm(prefix, spec, names, loader, query, kv),
        qkv=loader.linear(qkv),
        output=loader.linear(output),
        mlp=MoeMlp.load(prefix, spec, names, loader)
        if spec.layers[index].is_moe
        else DenseMlp.load(prefix + names.mlp, spec.intermediate_size, spec, names, loader),
    )


def _load_query_key_norm(
    prefix: str, spec: DecoderSpec, names: LayerNames, loader: WeightLoader, query: Shard, kv: Shard
) -> Norm | None:
    if spec.qk_norm == "none":
        return None
    weights = []
    for name, heads in ((names.query_norm, query), (names.key_norm, kv)):
        size = spec.head_dim if spec.qk_norm == "head" else heads.size * spec.head_dim
        weight = loader.norm(prefix + name, size, spec.norm_eps, spec.norm_offset).weight
        one_for_all = spec.qk_norm == "head"
        weights.append(weight.expand(len(heads.held), -1) if one_for_all else weight)
    return Norm(torch.cat(weights), spec.norm_eps)
