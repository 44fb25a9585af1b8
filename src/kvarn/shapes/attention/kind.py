"""Sizes of a layer's attention: its memory and costs follow from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from kvarn.shapes.cache import KvDtype


class AttentionKind(ABC):
    """The attention of one layer, all ranks together. Layers with equal kinds share a plan in each step."""

    __slots__ = ()

    cache_dtypes: ClassVar[tuple[KvDtype, ...]] = ("float32", "bfloat16", "int8", "fp8")
    """Types that it can be cached in, on some device."""
    reads_shared_prefixes: ClassVar[bool] = False
    """Some kernels read the blocks of a prefix once for all sequences that begin with it."""

    @property
    def sliding_window(self) -> int | None:
        """Tokens a query sees, itself included; None: all before it."""
        return None

    def cache_bytes_per_token(self, dtype: KvDtype) -> int:
        """Bytes that a token takes in the paged cache."""
        return 0

    def cache_copies(self, ranks: int) -> int:
        """Ranks that hold the same part of the paged cache, of so many that share the layer."""
        return 1

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's recurrent state, whatever the sequence's length; 0: there is none."""
        return 0

    @property
    def operations_per_pair(self) -> float:
        """Operations for one query and one key, all heads together. A multiply-add counts as two."""
        return 0.0

    @abstractmethod
    def num_weights(self, hidden_size: int) -> int:
        """Weights that each token is multiplied with."""

    @property
    @abstractmethod
    def activations(self) -> int:
        """Numbers made of a token at once, at most."""
