"""The encoder: token ids of many texts in, one vector for each out (BERT, Devlin et al. 2018; Sentence-BERT, 2019), or
one score of a pair of texts (a cross-encoder, Nogueira and Cho 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.attention import BidirectionalMetadata
from kvarn.kernels.batch import HeadShape, Rotation
from kvarn.kernels.linear import LayerNorm, Linear
from kvarn.kernels.operations import Operations
from kvarn.models.attention.base import LayerGroups
from kvarn.models.encoders.base import TextEncoder
from kvarn.models.encoders.config import ENCODERS, ClassifierNames, EncoderNames
from kvarn.models.loading.weights import WeightLoader
from kvarn.specs.errors import MissingWeightError
from kvarn.specs.place import Shard
from kvarn.specs.products import LinearSpec
from kvarn.specs.spec import ClassifierSpec, EncoderSpec


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


@dataclass(frozen=True, slots=True)
class Classifier:
    operations: Operations
    activation: Activation
    dense: Linear
    norm: LayerNorm | None
    output: Linear

    def __call__(self, pooled: torch.Tensor) -> torch.Tensor:
        """[S, hidden] to the labels' logits [S, 1]."""
        inner = self.operations.activation(self.dense(pooled), self.activation)
        return self.output(inner if self.norm is None else self.operations.layer_norm(inner, self.norm))


def load_classifier(
    prefix: str, names: ClassifierNames, spec: EncoderSpec, classifier: ClassifierSpec, loader: WeightLoader
) -> Classifier:
    """The head of a checkpoint whose encoder's tensors' names begin with `prefix`."""
    hidden = Shard.whole(spec.hidden_size)

    def linear(name: str, outputs: int, bias: bool) -> Linear:
        shape = LinearSpec(names=(name,), outputs=(Shard.whole(outputs),), inputs=hidden, bias=bias, role="router")
        return loader.linear(shape)

    return Classifier(
        operations=loader.kernels.operations,
        activation=classifier.activation,
        dense=linear((prefix if names.below_encoder else "") + names.dense, spec.hidden_size, classifier.bias),
        norm=loader.layer_norm(names.norm, spec.hidden_size, spec.norm_eps, bias=spec.norm_bias)
        if names.norm
        else None,
        output=linear(names.output, 1, True),
    )


class Encoder(TextEncoder):
    """A bidirectional transformer with pooling."""

    def __init__(self, spec: EncoderSpec, loader: WeightLoader) -> None:
        self.spec = spec
        family, hidden = ENCODERS[spec.architecture], spec.hidden_size
        names = family.names
        prefix = next((each for each in names.prefixes if f"{each}{names.words}.weight" in loader), None)
        if prefix is None:
            raise MissingWeightError(f"{names.words}.weight")

        def embedding(name: str, rows: int) -> torch.Tensor:
            return loader.embedding(prefix + name, Shard.whole(rows), hidden)

        def norm(name: str) -> LayerNorm:
            return loader.layer_norm(prefix + name, hidden, spec.norm_eps, bias=spec.norm_bias)

        head = spec.classifier
        scores = None if head is None else load_classifier(prefix, family.classifier, spec, head, loader)
        super().__init__(spec, loader, spec.pooling, spec.normalize, scores)
        self._heads = HeadShape(spec.num_heads, spec.num_heads, hidden // spec.num_heads)
        positions, types = spec.max_positions, spec.num_token_types
        self._words = embedding(names.words, spec.vocab_size)
        self._positions = embedding("embeddings.position_embeddings", positions) if positions else None
        self._types = embedding("embeddings.token_type_embeddings", types) if types else None
        self._norm = norm(names.norm)
        self._layers = [load_encoder_layer(prefix, index, spec, names, loader) for index in range(spec.num_layers)]
        self._final_norm = None if names.final_norm is None else norm(names.final_norm)
        self._groups = LayerGroups[int | None](
            [(each.rope, each.window) for each in spec.layers], self.kernels.device.torch_device
        )

    def _states(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        device, operations = token_ids.device, self.kernels.operations
        text = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
        ends = lengths.cumsum(0)
        positions = torch.arange(len(token_ids), device=device) - (ends - lengths)[text]
        hidden = F.embedding(token_ids, self._words)
        if self._positions is not None:
            hidden = hidden + F.embedding(positions + self.spec.position_offset, self._positions)
        if self._types is not None:
            hidden = hidden + self._token_types(token_ids, text, ends, lengths, self._types)
        hidden = operations.layer_norm(hidden.to(self._activation_dtype), self._norm)
        plans = [operations.plan_bidirectional(lengths, self._heads, window) for window in self._groups.kinds]
        steps = [EncoderStep(plan, self._groups.rotation(group, positions)) for group, plan in enumerate(plans)]
        for layer, group in zip(self._layers, self._groups.of_layer, strict=True):
            hidden = layer.forward(hidden, steps[group])
        return hidden

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        norm = self._final_norm
        return (states if norm is None else self.kernels.operations.layer_norm(states, norm)).float()

    def _token_types(
        self,
        token_ids: torch.Tensor,
        text: torch.Tensor,
        ends: torch.Tensor,
        lengths: torch.Tensor,
        types: torch.Tensor,
    ) -> torch.Tensor:
        """A text is a first segment. In a pair, which a cross-encoder reads, the second one begins after the separator,
        the token that ends the pair too."""
        classifier = self.spec.classifier
        if classifier is None or not classifier.pair_types:
            return types[0]
        separates = (token_ids == token_ids[ends - 1][text]).long()
        before = separates.cumsum(0) - separates
        return F.embedding((before > before[ends - lengths][text]).long(), types)
