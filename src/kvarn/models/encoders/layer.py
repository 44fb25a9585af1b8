"""One layer of an encoder: its weights and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.attention import BidirectionalMetadata
from kvarn.kernels.batch import Rotation
from kvarn.kernels.linear import LayerNorm, Linear
from kvarn.kernels.operations import Operations
from kvarn.models.encoders.config import EncoderNames
from kvarn.models.loading.weights import LinearSpec, WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import EncoderSpec


@dataclass(frozen=True, slots=True)
class EncoderStep:
    """Shared by layers with equal windows and rotation in one pass."""

    plan: BidirectionalMetadata
    rotation: Rotation


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Attention and MLP, each with its residual sum and norm."""

    spec: EncoderSpec
    operations: Operations
    qkv: Linear
    output: Linear
    attention_norm: LayerNorm | None
    """None: the embeddings were normed just before."""
    up: Linear
    down: Linear
    mlp_norm: LayerNorm

    def forward(self, hidden: torch.Tensor, step: EncoderStep) -> torch.Tensor:
        """[T, hidden] to the same."""
        norm = self.operations.layer_norm
        if self.spec.pre_norm:
            x = hidden if self.attention_norm is None else norm(hidden, self.attention_norm)
            hidden = hidden + self._attention(x, step)
            return hidden + self._mlp(norm(hidden, self.mlp_norm))
        assert self.attention_norm is not None, "only the first layer with norms before its halves may lack one"
        hidden = norm(hidden + self._attention(hidden, step), self.attention_norm)
        return norm(hidden + self._mlp(hidden), self.mlp_norm)

    def _attention(self, x: torch.Tensor, step: EncoderStep) -> torch.Tensor:
        return self.output(step.plan.run(self.qkv(x), step.rotation))

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(x)
        return self.down(inner if self.spec.gated else self.operations.activation(inner, self.spec.activation))


def load_encoder_layer(
    prefix: str, index: int, spec: EncoderSpec, names: EncoderNames, loader: WeightLoader
) -> EncoderLayer:
    """Layer `index`, whose tensors' names begin with `prefix`."""
    prefix = f"{prefix}{names.layers}.{index}."
    hidden, inner = Shard.whole(spec.hidden_size), Shard.whole(spec.intermediate_size)
    attention_bias, mlp_bias = spec.attention_bias, spec.mlp_bias

    def norm(name: str) -> LayerNorm:
        return loader.layer_norm(prefix + name, spec.hidden_size, spec.norm_eps, bias=spec.norm_bias)

    def linear(names: tuple[str, ...], outputs: tuple[Shard, ...], inputs: Shard, bias: bool, gated: bool) -> Linear:
        full = tuple(prefix + name for name in names)
        activation = spec.activation if gated else None
        return loader.linear(LinearSpec(names=full, outputs=outputs, inputs=inputs, bias=bias, activation=activation))

    return EncoderLayer(
        spec=spec,
        operations=loader.kernels.operations,
        qkv=linear(names.qkv, (hidden,) * 3, hidden, attention_bias, False),
        output=linear((names.output,), (hidden,), hidden, attention_bias, False),
        attention_norm=None if spec.pre_norm and index == 0 else norm(names.attention_norm),
        up=linear((names.up,), (inner,) * (2 if spec.gated else 1), hidden, mlp_bias, spec.gated),
        down=linear((names.down,), (hidden,), inner, mlp_bias, False),
        mlp_norm=norm(names.mlp_norm),
    )
