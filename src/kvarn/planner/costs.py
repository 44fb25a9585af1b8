"""The bytes a step must move and the operations it must do, whoever computes it.

Counted once: each weight (a step reads it whole, however many rows it has), each sequence's keys and values, and those
that several sequences share. Activations are left out: they stay in the caches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvarn.models import DecoderSpec

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
    """Of the output head, used by rows whose logits are wanted."""
    bits: float
    head_bits: float
    kv_bytes_per_token: float
    operations_per_pair: float
    """Of attention, for one query and one key, in all layers and heads."""

    def step(self, *, tokens: int, logits_rows: int, kv_tokens: int, pairs: float) -> StepWork:
        """The work of one step.

        Args:
            tokens: Tokens computed, prompt and decode together.
            logits_rows: Tokens whose logits are computed.
            kv_tokens: Distinct cached tokens read.
            pairs: (query, key) pairs attended.
        """
        if tokens == 0:
            return StepWork(0.0, 0.0, 0.0)
        active = self.dense_weights + self.expert_weights * self.experts_per_token
        read = self.dense_weights + self.expert_weights * self._experts_hit(tokens)
        return StepWork(
            weight_bytes=(read * self.bits + (self.head_weights * self.head_bits if logits_rows else 0.0)) / 8,
            kv_bytes=kv_tokens * self.kv_bytes_per_token,
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

    def _experts_hit(self, tokens: int) -> float:
        """Experts of a layer that at least one of the tokens visits, if each visits them with equal chance."""
        if self.num_experts == 0:
            return 0.0
        return self.num_experts * (1 - (1 - self.experts_per_token / self.num_experts) ** tokens)


def planned_costs(spec: DecoderSpec, precision: Precision, kv_bytes_per_token: float) -> DecoderCosts:
    """Costs of a decoder that would be held in `precision`; `kv_bytes_per_token` in all layers together."""
    costs = _counted(spec, kv_bytes_per_token)
    return replace(costs, bits=WEIGHT_BITS[precision], head_bits=WEIGHT_BITS[HEAD_PRECISION[precision]])


def loaded_costs(
    spec: DecoderSpec, *, layer_bytes: float, head_bytes: float, kv_bytes_per_token: float
) -> DecoderCosts:
    """Costs of a decoder whose layers' products and output head take so many bytes as they are held."""
    costs = _counted(spec, kv_bytes_per_token)
    held = costs.dense_weights + costs.num_experts * costs.expert_weights
    return replace(costs, bits=8 * layer_bytes / held, head_bits=8 * head_bytes / costs.head_weights)


def _counted(spec: DecoderSpec, kv_bytes_per_token: float) -> DecoderCosts:
    """All but the bits of a weight."""
    attention = spec.hidden_size * spec.head_dim * (2 * spec.num_heads + 2 * spec.num_kv_heads)
    dense = expert = 0.0
    mixtures = [layer.moe for layer in spec.layers if layer.moe is not None]
    for layer in spec.layers:
        moe = layer.moe
        if moe is None:
            dense += attention + 3 * spec.hidden_size * spec.intermediate_size
        else:
            dense += attention + spec.hidden_size * (3 * moe.shared_intermediate_size + moe.num_experts)
            expert += 3 * spec.hidden_size * moe.intermediate_size
    return DecoderCosts(
        dense_weights=dense,
        expert_weights=expert,
        num_experts=mixtures[0].num_experts if mixtures else 0,
        experts_per_token=mixtures[0].experts_per_token if mixtures else 0,
        head_weights=float(spec.vocab_size * spec.hidden_size),
        bits=0.0,
        head_bits=0.0,
        kv_bytes_per_token=kv_bytes_per_token,
        operations_per_pair=4.0 * spec.num_layers * spec.num_heads * spec.head_dim,
    )
