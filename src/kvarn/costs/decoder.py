"""The bytes a step must move and the operations it must do, whatever computes it.

Counted once: each weight (a step reads it whole, however many rows it has), each sequence's keys and values, and those
that several sequences share. Activations are left out: they stay in the caches.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.shapes.decoder import DecoderShape


@dataclass(frozen=True, slots=True)
class StepWork:
    weight_bytes: float
    kv_bytes: float
    operations: float
    """A multiply-add counts as two."""

    @property
    def num_bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        return self.operations / self.num_bytes if self.num_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCosts:
    dense_weights: float
    """Weights every token is multiplied with: attention, dense MLPs, routers, shared experts."""
    expert_weights: float
    """Weights of one expert, summed over the layers that have experts."""
    num_experts: int
    experts_per_token: int
    head_weights: float
    """Weights of the output head, used by rows whose logits are computed."""
    bits: float
    head_bits: float
    kv_bytes_per_token: float
    operations_per_pair: float
    """Operations of attention for one query and one key, in all layers and heads."""
    state_bytes: int = 0
    """Bytes of one sequence's recurrent states, in all layers."""

    def step(self, *, tokens: int, logits_rows: int, kv_tokens: int, pairs: float) -> StepWork:
        """The work of one step: of so many tokens, logits, distinct cached tokens read, and (query, key) pairs
        attended. Recurrent states are read and written once for each of `logits_rows`: sequences, all but those
        amid a prompt."""
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
        pairs = tokens * cached + tokens * (tokens + 1) / 2
        return self.step(tokens=tokens, logits_rows=1, kv_tokens=cached, pairs=pairs)

    def _experts_read(self, tokens: int) -> float:
        """Experts of a layer that at least one of the tokens visits, if each visits them with equal chance."""
        if self.num_experts == 0:
            return 0.0
        return self.num_experts * (1 - (1 - self.experts_per_token / self.num_experts) ** tokens)


def loaded_costs(
    shape: DecoderShape, *, layer_bytes: float, head_bytes: float, kv_bytes_per_token: float
) -> DecoderCosts:
    """Costs of a decoder whose layers' products and output head take so many bytes as they are held."""
    dense, expert = _layer_weights(shape)
    head = shape.vocab_size * shape.hidden_size
    return DecoderCosts(
        dense_weights=dense,
        expert_weights=expert,
        num_experts=shape.num_experts,
        experts_per_token=shape.experts_per_token,
        head_weights=float(head),
        bits=8 * layer_bytes / (dense + shape.num_experts * expert),
        head_bits=8 * head_bytes / head,
        kv_bytes_per_token=kv_bytes_per_token,
        operations_per_pair=sum(layer.attention.operations_per_pair for layer in shape.layers),
        state_bytes=shape.state_bytes,
    )


def _layer_weights(shape: DecoderShape) -> tuple[float, float]:
    """Weights of all layers that every token is multiplied with, and those of one expert in each mixture."""
    hidden, mixtures = shape.hidden_size, shape.num_moe_layers
    attention = sum(layer.attention.num_weights(hidden) for layer in shape.layers)
    dense_mlp = 3 * hidden * shape.intermediate_size
    router_and_shared = hidden * (3 * shape.shared_expert_size + shape.num_experts)
    dense = attention + (shape.num_layers - mixtures) * dense_mlp + mixtures * router_and_shared
    return float(dense), float(mixtures * 3 * hidden * shape.expert_size)
