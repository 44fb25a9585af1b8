"""The encoder: token ids of many texts in, one vector for each out (BERT, Devlin et al. 2018; Sentence-BERT, 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import HeadShape
from kvarn.kernels.linear import LayerNorm
from kvarn.models.attention.groups import LayerKinds
from kvarn.models.encoders.classifier import load_classifier
from kvarn.models.encoders.config import ENCODERS
from kvarn.models.encoders.layer import EncoderStep, load_encoder_layer
from kvarn.models.errors import MissingWeightError
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import EncoderSpec

TOKENS_AT_ONCE = 4096
"""Texts are computed in groups of about so many tokens: enough for full speed, and memory stays bounded."""


class Encoder:
    """A bidirectional transformer with pooling."""

    def __init__(self, spec: EncoderSpec, loader: WeightLoader) -> None:
        self.spec = spec
        self.dtype = loader.dtype
        self.kernels = loader.kernels
        self.quantization = loader.quantization
        self._heads = HeadShape(spec.num_heads, spec.num_heads, spec.hidden_size // spec.num_heads)
        names, hidden = ENCODERS[spec.architecture].names, spec.hidden_size
        prefix = _prefix(names.prefixes, names.words, loader)
        self._words = loader.embedding(prefix + names.words, Shard.whole(spec.vocab_size), hidden)
        embeddings, positions, types = f"{prefix}embeddings.", spec.max_positions, spec.num_token_types
        self._positions = (
            loader.embedding(f"{embeddings}position_embeddings", Shard.whole(positions), hidden) if positions else None
        )
        self._types = (
            loader.embedding(f"{embeddings}token_type_embeddings", Shard.whole(types), hidden) if types else None
        )

        def norm(name: str) -> LayerNorm:
            return loader.layer_norm(prefix + name, hidden, spec.norm_eps, bias=spec.norm_bias)

        self._norm = norm(names.norm)
        self._layers = [load_encoder_layer(prefix, index, spec, names, loader) for index in range(spec.num_layers)]
        self._final_norm = None if names.final_norm is None else norm(names.final_norm)
        head = spec.classifier
        self._classifier = (
            None
            if head is None
            else load_classifier(prefix, ENCODERS[spec.architecture].classifier, spec, head, loader)
        )
        self._kinds = LayerKinds(spec.layers, self.kernels.device)

    @property
    def vector_size(self) -> int:
        """Numbers that come of a text."""
        return 1 if self.spec.classifier else self.spec.hidden_size

    @torch.inference_mode()
    def encode(self, token_ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """The vectors of S texts.

        token_ids: [T] int64, the texts one after the other, with their special tokens. starts: [S + 1], text s being
        token_ids[starts[s]:starts[s + 1]]; no text is empty or longer than `spec.max_context_length`. Returns
        [S, vector_size] float32: vectors, or the logit of a classifier's label. A text's does not depend on the
        texts beside it.
        """
        lengths = (starts[1:] - starts[:-1]).to(torch.int64)
        check_lengths(lengths, self.spec.max_context_length)
        out = torch.empty((len(lengths), self.vector_size), dtype=torch.float32, device=token_ids.device)
        for texts in grouped(lengths):
            spans = [token_ids[int(starts[s]) : int(starts[s + 1])] for s in texts]
            out[texts] = self._encode_sorted(torch.cat(spans), lengths[texts])
        return out

    def _encode_sorted(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        device, kernels = token_ids.device, self.kernels
        text = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
        ends = lengths.cumsum(0)
        positions = torch.arange(len(token_ids), device=device) - (ends - lengths)[text]
        hidden = F.embedding(token_ids, self._words)
        if self._positions is not None:
            hidden = hidden + F.embedding(positions + self.spec.position_offset, self._positions)
        if self._types is not None:
            hidden = hidden + self._token_types(token_ids, text, ends, lengths, self._types)
        hidden = kernels.layer_norm(hidden.to(kernels.activation_dtype(self.dtype)), self._norm)
        steps = [
            EncoderStep(kernels.plan_bidirectional(lengths, self._heads, window), self._kinds.rotation(kind, positions))
            for kind, window in enumerate(self._kinds.windows)
        ]
        for layer, kind in zip(self._layers, self._kinds.of_layer, strict=True):
            hidden = layer.forward(hidden, steps[kind])
        if self._final_norm is not None:
            hidden = kernels.layer_norm(hidden, self._final_norm)
        return self._pool(hidden.float(), text, ends, lengths)

    def _pool(
        self, hidden: torch.Tensor, text: torch.Tensor, ends: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        if self.spec.pooling == "cls":
            pooled = hidden[ends - lengths]
        elif self.spec.pooling == "last":
            pooled = hidden[ends - 1]
        else:
            pooled = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add_(0, text, hidden) / lengths[:, None]
        if self._classifier is not None:
            return self._classifier(pooled.to(self.kernels.activation_dtype(self.dtype))).float()
        return F.normalize(pooled, dim=-1) if self.spec.normalize else pooled

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


def check_lengths(lengths: torch.Tensor, longest: int) -> None:
    """Raise ValueError where a text is empty or too long."""
    if len(lengths) and not (int(lengths.min()) > 0 and int(lengths.max()) <= longest):
        raise ValueError(
            f"texts must have 1 to {longest} tokens, these have {int(lengths.min())} to {int(lengths.max())}"
        )


def grouped(lengths: torch.Tensor) -> list[list[int]]:
    """Texts in order of their lengths [S], cut into groups of about TOKENS_AT_ONCE tokens."""
    groups: list[list[int]] = []
    free = 0
    for text in lengths.argsort(stable=True).tolist():
        length = int(lengths[text])
        if not groups or length > free:
            groups.append([])
            free = TOKENS_AT_ONCE
        groups[-1].append(text)
        free -= length
    return groups
