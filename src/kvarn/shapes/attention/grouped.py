"""Grouped-query attention (Ainslie et al. 2023): several query heads may share a key and a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvarn.shapes.attention.kind import AttentionKind
from kvarn.shapes.cache import KvDtype, kv_bytes_per_head


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedDimensions(AttentionKind):
    """Multi-head attention is the case of equal numbers of heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    gated: bool = False
    """The result is multiplied by sigmoids of as many numbers, which a product makes of the hidden state."""

    reads_shared_prefixes: ClassVar[bool] = True

    def cache_bytes_per_token(self, dtype: KvDtype) -> int:
        """A key and a value of each head. A window frees no blocks: later queries do not read them."""
        return 2 * self.num_kv_heads * kv_bytes_per_head(self.head_dim, dtype)

    def cache_copies(self, ranks: int) -> int:
        """Ranks beyond the number of key/value heads repeat them."""
        return max(1, ranks // self.num_kv_heads)

    @property
    def operations_per_pair(self) -> float:
        """A score and a weighted value."""
        return 2.0 * self.num_heads * 2 * self.head_dim

    def num_weights(self, hidden_size: int) -> int:
        """Queries, keys, values, output, and gates where there are some."""
        by_query = 3 if self.gated else 2
        return hidden_size * self.head_dim * (by_query * self.num_heads + 2 * self.num_kv_heads)

    @property
    def activations(self) -> int:
        """Queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
