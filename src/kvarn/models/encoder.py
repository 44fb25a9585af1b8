"""The encoder: token ids of many texts in, one vector for each out (BERT, Devlin et al. 2018; Sentence-BERT, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.backend import BidirectionalPlan
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.linear import LayerNorm, Linear
from kvarn.models.encoder_config import PREFIXES
from kvarn.models.errors import MissingWeightError
from kvarn.models.parallel import Shard
from kvarn.models.spec import EncoderSpec
from kvarn.models.weights import LinearSpec, WeightLoader

TOKENS_AT_ONCE = 4096
"""Texts are computed in groups of about so many tokens: enough for full speed, and memory stays bounded."""


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Attention and MLP, each followed by its residual sum and norm."""

    qkv: Linear
    output: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    mlp_norm: LayerNorm


class Encoder:
    """A bidirectional transformer with pooling."""

    def __init__(self, spec: EncoderSpec, loader: WeightLoader) -> None:
        self.spec = spec
        self.dtype = loader.dtype
        self.kernels = loader.kernels
        self.quantization = loader.quantization
        self._heads = HeadShape(spec.num_heads, spec.num_heads, spec.hidden_size // spec.num_heads)
        prefix = _prefix(loader)
        embeddings, hidden = f"{prefix}embeddings.", spec.hidden_size
        self._words = loader.embedding(f"{embeddings}word_embeddings", Shard.whole(spec.vocab_size), hidden)
        self._positions = loader.embedding(f"{embeddings}position_embeddings", Shard.whole(spec.max_positions), hidden)
        types = loader.embedding(f"{embeddings}token_type_embeddings", Shard.whole(spec.num_token_types), hidden)
        self._first_type = types[0]  # every text here is a first segment
        self._norm = loader.layer_norm(f"{embeddings}LayerNorm", hidden, spec.norm_eps)
        self._layers = [
            _load_layer(f"{prefix}encoder.layer.{index}.", spec, loader) for index in range(spec.num_layers)
        ]

    @torch.inference_mode()
    def encode(self, token_ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """The vectors of S texts.

        token_ids: [T] int64, the texts one after the other, with their special tokens. starts: [S + 1], text s being
        token_ids[starts[s]:starts[s + 1]]; no text is empty or longer than `spec.max_context_length`. Returns
        [S, hidden_size] float32. A text's vector does not depend on the texts beside it.
        """
        lengths = (starts[1:] - starts[:-1]).to(torch.int64)
        _check_lengths(lengths, self.spec.max_context_length)
        out = torch.empty((len(lengths), self.spec.hidden_size), dtype=torch.float32, device=token_ids.device)
        order = lengths.argsort(stable=True)
        for texts in _groups(order, lengths):
            spans = [token_ids[int(starts[s]) : int(starts[s + 1])] for s in texts]
            out[texts] = self._encode_sorted(torch.cat(spans), lengths[texts])
        return out

    def _encode_sorted(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        device, kernels = token_ids.device, self.kernels
        text = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
        ends = lengths.cumsum(0)
        positions = torch.arange(len(token_ids), device=device) - (ends - lengths)[text] + self.spec.position_offset
        hidden = F.embedding(token_ids, self._words) + F.embedding(positions, self._positions) + self._first_type
        hidden = kernels.layer_norm(hidden.to(kernels.activation_dtype(self.dtype)), self._norm)
        plan = kernels.plan_bidirectional(lengths, self._heads)
        for layer in self._layers:
            hidden = self._layer(hidden, layer, plan)
        return self._pool(hidden.float(), text, ends, lengths)

    def _layer(self, hidden: torch.Tensor, layer: EncoderLayer, plan: BidirectionalPlan) -> torch.Tensor:
        mixed = plan.run(layer.qkv(hidden))
        hidden = self.kernels.layer_norm(hidden + layer.output(mixed), layer.attention_norm)
        inner = self.kernels.activation(layer.up(hidden), self.spec.activation)
        return self.kernels.layer_norm(hidden + layer.down(inner), layer.mlp_norm)

    def _pool(
        self, hidden: torch.Tensor, text: torch.Tensor, ends: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        if self.spec.pooling == "cls":
            pooled = hidden[ends - lengths]
        else:
            pooled = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add_(0, text, hidden) / lengths[:, None]
        return F.normalize(pooled, dim=-1) if self.spec.normalize else pooled


def _prefix(loader: WeightLoader) -> str:
    """Tensors of a bare encoder have no prefix, those saved below a head have the family's name."""
    for prefix in PREFIXES:
        if f"{prefix}embeddings.word_embeddings.weight" in loader:
            return prefix
    raise MissingWeightError("embeddings.word_embeddings.weight")


def _load_layer(prefix: str, spec: EncoderSpec, loader: WeightLoader) -> EncoderLayer:
    hidden, inner = Shard.whole(spec.hidden_size), Shard.whole(spec.intermediate_size)

    def linear(names: tuple[str, ...], outputs: tuple[Shard, ...], inputs: Shard) -> Linear:
        full = tuple(prefix + name for name in names)
        return loader.linear(LinearSpec(names=full, outputs=outputs, inputs=inputs, bias=True))

    attention = ("attention.self.query", "attention.self.key", "attention.self.value")
    return EncoderLayer(
        qkv=linear(attention, (hidden, hidden, hidden), hidden),
        output=linear(("attention.output.dense",), (hidden,), hidden),
        attention_norm=loader.layer_norm(f"{prefix}attention.output.LayerNorm", spec.hidden_size, spec.norm_eps),
        up=linear(("intermediate.dense",), (inner,), hidden),
        down=linear(("output.dense",), (hidden,), inner),
        mlp_norm=loader.layer_norm(f"{prefix}output.LayerNorm", spec.hidden_size, spec.norm_eps),
    )


def _check_lengths(lengths: torch.Tensor, longest: int) -> None:
    if len(lengths) and not (int(lengths.min()) > 0 and int(lengths.max()) <= longest):
        raise ValueError(
            f"texts must have 1 to {longest} tokens, these have {int(lengths.min())} to {int(lengths.max())}"
        )


def _groups(order: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    """Texts in order of length, cut into groups of about TOKENS_AT_ONCE tokens."""
    groups: list[list[int]] = []
    free = 0
    for text in order.tolist():
        length = int(lengths[text])
        if not groups or length > free:
            groups.append([])
            free = TOKENS_AT_ONCE
        groups[-1].append(text)
        free -= length
    return groups
