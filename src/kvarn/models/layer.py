"""One decoder layer: its weights and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.decoder import LayerParts
from kvarn.kernels.linear import LayerNorm, Norm
from kvarn.kernels.operations import Operations
from kvarn.models.attention import Attention, LayerStep, load_attention
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.mlp.dense import DenseMlp
from kvarn.models.mlp.moe import MoeMlp
from kvarn.models.parallel.tensor import Parallel
from kvarn.specs.families.family import LayerNames
from kvarn.specs.mlp import MlpProducts
from kvarn.specs.spec import DecoderSpec

AnyNorm = Norm | LayerNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    spec: DecoderSpec
    operations: Operations
    parallel: Parallel
    attention_input_norm: AnyNorm | None
    attention_output_norm: Norm | None
    mlp_input_norm: AnyNorm | None
    """None where the MLP takes what the attention takes, and where there is no norm before it."""
    mlp_output_norm: Norm | None
    attention: Attention
    mlp: DenseMlp | MoeMlp

    @property
    def nbytes(self) -> int:
        return sum(product.nbytes for product in self.attention.products) + self.mlp.nbytes

    @property
    def can_be_captured(self) -> bool:
        """Whether a device may repeat it without the host, which asks where tokens go when experts take turns."""
        return isinstance(self.mlp, DenseMlp) or self.mlp.experts.grouped is not None

    def parts(self, group: int) -> LayerParts | None:
        """The parts with which kernels compute it with others in one call; None where it does more than they compute.
        `group`: of layers with the same attention and rotation."""
        spec, attention, mlp = self.spec, self.attention.plain, self.mlp
        attention_norm, mlp_norm = self.attention_input_norm, self.mlp_input_norm
        if isinstance(attention_norm, LayerNorm) or isinstance(mlp_norm, LayerNorm) or spec.parallel_blocks:
            return None
        if attention is None or spec.residual_scale != 1.0 or self.parallel.divides:
            return None
        if not isinstance(mlp, DenseMlp) or mlp.gate is not None:
            return None
        return LayerParts(
            attention_norm=attention_norm,
            qkv=attention.qkv,
            query_key_norm=attention.query_key_norm,
            output=attention.output,
            attention_output_norm=self.attention_output_norm,
            mlp_norm=mlp_norm,
            gate_up=mlp.gate_up,
            down=mlp.down,
            mlp_output_norm=self.mlp_output_norm,
            kind=group,
        )

    def forward(self, hidden: torch.Tensor, index: int, step: LayerStep) -> torch.Tensor:
        """The residual stream [T, hidden] after this layer, in place. `index`: the layer's in the cache, among those
        that attend or those with a recurrent state."""
        x, norm = self._normed(hidden, self.attention_input_norm)
        add_to = self._sum_target(hidden, self.attention_output_norm)
        out = self.attention.forward(x, norm, add_to, index, step)
        hidden = self._add(hidden, out, self.attention_output_norm)
        if not self.spec.parallel_blocks:
            x, norm = self._normed(hidden, self.mlp_input_norm)
        add_to = self._sum_target(hidden, self.mlp_output_norm)
        out = self.mlp.forward(x, norm, add_to, step)
        return self._add(hidden, out, self.mlp_output_norm)

    def _normed(self, hidden: torch.Tensor, norm: AnyNorm | None) -> tuple[torch.Tensor, Norm | None]:
        """The input of the next product, and the norm that the product applies to it."""
        if isinstance(norm, LayerNorm) or (norm is not None and self.spec.parallel_blocks):
            return self.operations.norm(hidden, norm), None
        return hidden, norm

    def _sum_target(self, hidden: torch.Tensor, output_norm: Norm | None) -> torch.Tensor | None:
        """The residual stream, where the last product of a half may add to it at once."""
        plain = output_norm is None and self.spec.residual_scale == 1.0
        return hidden if plain else None

    def _add(self, hidden: torch.Tensor, x: torch.Tensor, output_norm: Norm | None) -> torch.Tensor:
        """The stream with a half's output x added, unless it was added already."""
        if x is hidden:
            return hidden
        if output_norm is not None:
            return self.operations.rms_norm(x, output_norm, add_to=hidden)
        return hidden.add_(x, alpha=self.spec.residual_scale)


def scaled_embedding(hidden: torch.Tensor, spec: DecoderSpec, dtype: torch.dtype) -> torch.Tensor:
    """Rows of the embedding as they enter the first layer. The factor is rounded to the weights' type, which is what
    the model was trained with."""
    if spec.embedding_scale == 1.0:
        return hidden
    return hidden * torch.tensor(spec.embedding_scale, dtype=dtype).to(hidden.dtype)


def load_norm(name: str, spec: DecoderSpec, loader: WeightLoader) -> AnyNorm:
    if spec.layer_norm:
        return loader.layer_norm(name, spec.hidden_size, spec.norm_eps, bias=False)
    return loader.norm(name, spec.hidden_size, spec.norm_eps, spec.norm_offset)


def load_layer(index: int, spec: DecoderSpec, names: LayerNames, loader: WeightLoader) -> DecoderLayer:
    prefix = f"model.layers.{index}."

    def norm(name: str | None) -> Norm | None:
        return None if name is None else loader.norm(prefix + name, spec.hidden_size, spec.norm_eps, spec.norm_offset)

    def input_norm(name: str | None) -> AnyNorm | None:
        return None if name is None else load_norm(prefix + name, spec, loader)

    return DecoderLayer(
        spec=spec,
        operations=loader.kernels.operations,
        parallel=loader.parallel,
        attention_input_norm=input_norm(names.attention_input_norm),
        attention_output_norm=norm(names.attention_output_norm),
        mlp_input_norm=input_norm(names.mlp_input_norm),
        mlp_output_norm=norm(names.mlp_output_norm),
        attention=load_attention(prefix, spec.layers[index].attention, spec, names, loader),
        mlp=MoeMlp.load(index, prefix, spec, names, loader)
        if spec.layers[index].is_moe
        else DenseMlp.load(
            MlpProducts.of(prefix + names.mlp, spec.intermediate_size, spec, names, loader.parallel), loader
        ),
    )
