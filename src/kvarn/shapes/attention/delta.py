"""A gated delta rule (Gated DeltaNet, Yang et al. 2024), which mixes tokens by a recurrent state."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.shapes.attention.kind import AttentionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDimensions(AttentionKind):
    """A sequence has one state in a layer: a matrix [key_dim, value_dim] of each value head, and the last inputs of a
    short causal convolution."""

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
        """Numbers in the values of a token, and in the rule's result."""
        return self.value_heads * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Matrices and convolution inputs, all float32."""
        return 4 * (self.value_heads * self.key_dim * self.value_dim + (self.window - 1) * self.channels)

    def num_weights(self, hidden_size: int) -> int:
        """Inputs of the convolution, gates, two rates a head, and the output."""
        return hidden_size * (self.channels + 2 * self.value_features + 2 * self.value_heads)

    @property
    def activations(self) -> int:
        """Inputs of the convolution, gates and the result."""
        return self.channels + 2 * self.value_features
