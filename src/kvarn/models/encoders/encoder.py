"""The encoder: token ids of many texts in, one vector for each out (BERT, Devlin et al. 2018; Sentence-BERT, 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import HeadShape
from kvarn.kernels.linear import LayerNorm
from kvarn.models.attention.groups import LayerGroups
from kvarn.models.encoders.base import TextEncoder
from kvarn.models.encoders.classifier import load_classifier
from kvarn.models.encoders.config import ENCODERS
from kvarn.models.encoders.layer import EncoderStep, load_encoder_layer
from kvarn.models.errors import MissingWeightError
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import EncoderSpec


class Encoder(TextEncoder):
    """A bidirectional transformer with pooling."""

    def __init__(self, spec: EncoderSpec, loader: WeightLoader) -> None:
        self.spec = spec
        family, hidden = ENCODERS[spec.architecture], spec.hidden_size
        names = family.names
        prefix = _prefix(names.prefixes, names.words, loader)

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


def _prefix(prefixes: tuple[str, ...], words: str, loader: WeightLoader) -> str:
    """The one with which the checkpoint names its embeddings."""
    for prefix in prefixes:
        if f"{prefix}{words}.weight" in loader:
            return prefix
    raise MissingWeightError(f"{words}.weight")
