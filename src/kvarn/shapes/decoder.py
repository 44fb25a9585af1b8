"""The sizes of a decoder: what its memory and its costs follow from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvarn.shapes.attention import AttentionKind
from kvarn.shapes.cache import KvDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    attention: AttentionKind
    is_moe: bool = False
    """A mixture of experts in place of a dense MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder-only transformer. All of its mixtures of experts are of the same shape."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Inner features of a dense MLP."""
    layers: Sequence[LayerShape]
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    """Inner features of one expert."""
    shared_expert_size: int = 0
    """Inner features of the expert that every token visits; 0: there is none."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_moe_layers(self) -> int:
        return sum(layer.is_moe for layer in self.layers)

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """The different kinds of attention, in the order of their first layers."""
        return list(dict.fromkeys(layer.attention for layer in self.layers))

    @property
    def has_states(self) -> bool:
        return any(kind.state_bytes for kind in self.attention_kinds)

    @property
    def reads_shared_prefixes(self) -> bool:
        return any(kind.reads_shared_prefixes for kind in self.attention_kinds)

    @property
    def state_bytes(self) -> int:
        return sum(layer.attention.state_bytes for layer in self.layers)

    def kv_bytes_per_token(self, dtype: KvDtype) -> int:
        return sum(layer.attention.cache_bytes_per_token(dtype) for layer in self.layers)

    def cache_copies(self, ranks: int) -> int:
        return max(kind.cache_copies(ranks) for kind in self.attention_kinds)

    @property
    def activations(self) -> int:
        """Numbers made of a token at once, at most: hidden state, attention and MLP."""
        mlp = max(self.intermediate_size, self.expert_size * self.experts_per_token + self.shared_expert_size)
        return self.hidden_size + max(kind.activations for kind in self.attention_kinds) + mlp
