"""Multi-head latent attention (DeepSeek-V2 2024): a token is cached as one row that all heads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvarn.shapes.attention.kind import AttentionKind
from kvarn.shapes.cache import KvDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentDimensions(AttentionKind):
    """The cached row is a compressed key and value, and beside it a rotated key."""

    num_heads: int
    rank: int
    """Numbers of the compressed key and value."""
    rope_dim: int
    """Numbers of the rotated key, and of a head's query that meet it."""
    plain_dim: int
    """Numbers of a head's query and key that are not rotated."""
    value_dim: int
    """Numbers of a head's value."""
    query_rank: int = 0
    """Numbers of the compressed query; 0: it is not compressed."""

    cache_dtypes: ClassVar[tuple[KvDtype, ...]] = ("float32", "bfloat16")

    @property
    def row_size(self) -> int:
        """Numbers cached of a token."""
        return self.rank + self.rope_dim

    @property
    def head_dim(self) -> int:
        return self.plain_dim + self.rope_dim

    def cache_bytes_per_token(self, dtype: KvDtype) -> int:
        """One row. Raises KeyError where rows are not cached in the type."""
        return self.row_size * {"float32": 4, "bfloat16": 2}[dtype]

    def cache_copies(self, ranks: int) -> int:
        """All: a row has no heads to divide."""
        return ranks

    @property
    def operations_per_pair(self) -> float:
        """A score over the row and a weighted compressed value."""
        return 2.0 * self.num_heads * (self.row_size + self.rank)

    def num_weights(self, hidden_size: int) -> int:
        """Products to the row and to queries, those of each head, and the output."""
        query = (self.query_rank or hidden_size) * self.head_dim * self.num_heads
        keys_and_values = self.rank * (self.plain_dim + self.value_dim) * self.num_heads
        shared = self.query_rank + self.row_size + self.num_heads * self.value_dim
        return hidden_size * shared + query + keys_and_values

    @property
    def activations(self) -> int:
        """Queries of all heads."""
        return self.num_heads * self.head_dim
