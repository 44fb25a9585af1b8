"""A classifier over an encoder: with one label, a cross-encoder, which says how well a query and a document go together
(Nogueira and Cho 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.linear import LayerNorm, Linear
from kvarn.kernels.operations import Operations
from kvarn.models.encoders.config import ClassifierNames
from kvarn.models.loading.weights import LinearSpec, WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import ClassifierSpec, EncoderSpec


@dataclass(frozen=True, slots=True)
class Classifier:
    """One hidden layer."""

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
