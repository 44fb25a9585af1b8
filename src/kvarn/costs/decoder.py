"""The bytes a step must move and the operations it must do, whatever computes it.

Counted once: each weight (a step reads it whole, however many rows it has), each sequence's keys and values, and those
that several sequences share. Activations are left out: they stay in the caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "bfloat16", "int8", "int4"]

WEIGHT_BITS: dict[Precision, float] = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4.5}
"""Bits of one weight. int4: a float16 scale for each group of 32."""

HEAD_PRECISION: dict[Precision, Precision] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int4": "int8",
}
"""What the output head is held in (docs/quantization.md)."""

KvDtype = Literal["float32", "bfloat16", "int8", "fp8"]
"""Type of cached keys and values. int8 has a float32 scale for each token and head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentDimensions:
    """Of multi-head latent attention (DeepSeek-V2 2024): a token is cached as one row that all heads share."""

    rank: int
    """Numbers of the compressed key and value."""
    rope_dim: int
    """Numbers of the rotated key, and of a head's query that meet it."""
    plain_dim: int
    """Numbers of a head's query and key that are not rotated."""
    value_dim: int
    """Of one head."""
    query_rank: int = 0
    """Numbers of the compressed query; 0: it is not compressed."""

    @property
    def row_size(self) -> int:
        """Numbers cached of a token."""
        return self.rank + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDimensions:
    """Of a gated delta rule (Gated DeltaNet, Yang et al. 2024), which takes the place of attention in some layers.

    A sequence has one state in each such layer: a matrix [key_dim, value_dim] of each value head, and the last inputs
    of a short causal convolution.
    """

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: neighbouring ones share a query and a key."""
    key_dim: int
    value_dim: int
    window: int
    """Tokens that the convolution sees, its own included."""

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution takes: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_features

    @property
    def value_features(self) -> int:
        """Numbers in the values of a token, and in what the rule gives."""
        return self.value_heads * self.value_dim

    @property
    def state_numbers(self) -> int:
        """Numbers, each float32, of one sequence's state in one layer."""
        return self.value_heads * self.key_dim * self.value_dim + (self.window - 1) * self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderDimensions:
    """What the costs of a decoder follow from. Where it has mixtures of experts, all of them are of the same shape."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of a dense MLP."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent: LatentDimensions | None = None
    """None: keys and values are cached by heads."""
    delta: DeltaDimensions | None = None
    """Of the layers with a gated delta rule in place of attention; None: there are none."""
    num_delta_layers: int = 0
    gated_attention: bool = False
    """What attention gives is multiplied by sigmoids of as many numbers, which a product makes of the hidden state."""
    num_moe_layers: int = 0
    """Layers with a mixture of experts in place of a dense MLP."""
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    """Intermediate size of one expert."""
    shared_expert_size: int = 0
    """Of the expert that every token visits; 0: there is none."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step must do."""

    weight_bytes: float
    kv_bytes: float
    operations: float
    """A multiply-add counts as two."""

    @property
    def num_bytes(self) -> float:
        """Bytes read in all."""
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations for each byte read."""
        return self.operations / self.num_bytes if self.num_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCosts:
    """A decoder's costs, by what drives them."""

    dense_weights: float
    """Weights every token is multiplied with: attention, dense MLPs, routers, shared experts."""
    expert_weights: float
    """Weights of one expert, summed over the layers that have experts."""
    num_experts: int
    experts_per_token: int
    head_weights: float
    """Of the output head, used by rows whose logits are computed."""
    bits: float
    head_bits: float
    kv_bytes_per_token: float
    operations_per_pair: float
    """Of attention, for one query and one key, in all layers and heads."""
    state_bytes: int = 0
    """Of one sequence's recurrent states, in all layers."""

    def step(self, *, tokens: int, logits_rows: int, kv_tokens: int, pairs: float) -> StepWork:
        """The work of one step.

        Args:
            tokens: Tokens computed, prompt and decode together.
            logits_rows: Tokens whose logits are computed.
            kv_tokens: Distinct cached tokens read.
            pairs: (query, key) pairs attended.

        Recurrent states are read and written once for each of `logits_rows`: sequences, all but those amid a prompt.
        """
        if tokens == 0:
            return StepWork(0.0, 0.0, 0.0)
        active = self.dense_weights + self.expert_weights * self.experts_per_token
        read = self.dense_weights + self.expert_weights * self._experts_read(tokens)
        return StepWork(
            weight_bytes=(read * self.bits + (self.head_weights * self.head_bits if logits_rows else 0.0)) / 8,
            kv_bytes=kv_tokens * self.kv_bytes_per_token + 2 * logits_rows * self.state_bytes,
            operations=2 * (tokens * active + logits_rows * self.head_weights) + pairs * self.operations_per_pair,
        )

    def decode(self, batch: int, context: int, shared: int = 0) -> StepWork:
        """One token for each of `batch` sequences of `context` tokens, the first `shared` of them the same for all."""
        distinct = batch * (context - shared) + shared
        return self.step(tokens=batch, logits_rows=batch, kv_tokens=distinct, pairs=batch * context)

    def prefill(self, tokens: int, cached: int = 0) -> StepWork:
        """A prompt's last `tokens` tokens after `cached` ones; logits of the last."""
        pairs = tokens * cached + tokens * (tokens + 1) / 2
        return self.step(tokens=tokens, logits_rows=1, kv_tokens=cached, pairs=pairs)

    def _experts_read(self, tokens: int) -> float:
        """Experts of a layer that at least one of the tokens visits, if each visits them with equal chance."""
        if self.num_experts == 0:
            return 0.0
        return self.num_experts * (1 - (1 - self.experts_per_token / self.num_experts) ** tokens)


def planned_costs(model: DecoderDimensions, precision: Precision, kv_bytes_per_token: float) -> DecoderCosts:
    """Costs of a decoder that would be held in `precision`; `kv_bytes_per_token` in all layers together."""
    return _costs(model, WEIGHT_BITS[precision], WEIGHT_BITS[HEAD_PRECISION[precision]], kv_bytes_per_token)


def loaded_costs(
    model: DecoderDimensions, *, layer_bytes: float, head_bytes: float, kv_bytes_per_token: float
) -> DecoderCosts:
    """Costs of a decoder whose layers' products and output head take so many bytes as they are held."""
    dense, expert = _layer_weights(model)
    bits = 8 * layer_bytes / (dense + model.num_experts * expert)
    return _costs(model, bits, 8 * head_bytes / (model.vocab_size * model.hidden_size), kv_bytes_per_token)


def kv_bytes_per_token(model: DecoderDimensions, dtype: KvDtype) -> int:
    """Bytes that one token's keys and values take in all layers together."""
    num_layers = model.num_layers - model.num_delta_layers
    if model.latent is not None:
        return num_layers * model.latent.row_size * {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    return 2 * num_layers * model.num_kv_heads * kv_bytes_per_head(model.head_dim, dtype)


def state_bytes(model: DecoderDimensions) -> int:
    """Bytes of one sequence's recurrent states in all layers; 0 where the model has none."""
    return 0 if model.delta is None else 4 * model.num_delta_layers * model.delta.state_numbers


def kv_bytes_per_head(head_dim: int, dtype: KvDtype) -> int:
    """Bytes of one token's key, or value, in one head.

    As the compiled kernels hold it, filled up to a multiple of 16 numbers; torch's take no more.
    """
    held_dim = -(-head_dim // 16) * 16
    return {"float32": 4 * held_dim, "bfloat16": 2 * held_dim, "int8": held_dim + 4, "fp8": held_dim}[dtype]


def _costs(model: DecoderDimensions, bits: float, head_bits: float, kv_bytes_per_token: float) -> DecoderCosts:
    dense, expert = _layer_weights(model)
    return DecoderCosts(
        dense_weights=dense,
        expert_weights=expert,
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
        head_weights=float(model.vocab_size * model.hidden_size),
        bits=bits,
        head_bits=head_bits,
        kv_bytes_per_token=kv_bytes_per_token,
        operations_per_pair=_operations_per_pair(model),
        state_bytes=state_bytes(model),
    )


def _operations_per_pair(model: DecoderDimensions) -> float:
    numbers = 2 * model.head_dim if model.latent is None else model.latent.row_size + model.latent.rank
    return 2.0 * (model.num_layers - model.num_delta_layers) * model.num_heads * numbers


def _attention_weights(model: DecoderDimensions) -> int:
    """Of one layer."""
    hidden, heads, latent = model.hidden_size, model.num_heads, model.latent
    if latent is None:
        by_query = 3 if model.gated_attention else 2
        return hidden * model.head_dim * (by_query * heads + 2 * model.num_kv_heads)
    query = (latent.query_rank or hidden) * (latent.plain_dim + latent.rope_dim) * heads
    keys_and_values = latent.rank * (latent.plain_dim + latent.value_dim) * heads
    return hidden * (latent.query_rank + latent.row_size + heads * latent.value_dim) + query + keys_and_values


def _delta_weights(model: DecoderDimensions) -> int:
    """Of one layer with a gated delta rule."""
    delta = model.delta
    if delta is None:
        return 0
    return model.hidden_size * (delta.channels + 2 * delta.value_features + 2 * delta.value_heads)


def _layer_weights(model: DecoderDimensions) -> tuple[float, float]:
    """Weights of all layers that every token is multiplied with, and those of one expert in each mixture."""
    hidden, mixtures = model.hidden_size, model.num_moe_layers
    attention_layers = model.num_layers - model.num_delta_layers
    mixing = attention_layers * _attention_weights(model) + model.num_delta_layers * _delta_weights(model)
    dense_mlp = 3 * hidden * model.intermediate_size
    router_and_shared = hidden * (3 * model.shared_expert_size + model.num_experts)
    dense = mixing + (model.num_layers - mixtures) * dense_mlp + mixtures * router_and_shared
    return float(dense), float(mixtures * 3 * hidden * model.expert_size)
