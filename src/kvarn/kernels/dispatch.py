"""The one place where a model meets a backend of kernels.

A model calls operations through `Kernels` and never learns which backend runs them. Backends are tried by name; the
reference one (torch) is complete, and every other is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.attention_plan import AttentionPlan
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.linear import PackedLinear
from kvarn.kernels.torch_backend import TorchKernels


class Kernels(Protocol):
    """What every backend offers. T tokens, H query heads, G key/value heads, D numbers in a head."""

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        """Bring a weight [out, in] (and bias [out]) once, at load, into the form this backend multiplies fastest."""
        ...

    def linear(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """x [T, in] times the packed weight, plus its bias: [T, out] in x's dtype."""
        ...

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, mean_square: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Root-mean-square norm of the last dimension, computed in float32, in x's dtype.

        `weight` broadcasts against x. `mean_square` [..., 1] replaces the mean of squares where x is only one shard
        of the vector to be normalised.
        """
        ...

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Layer norm of the last dimension, in x's dtype."""
        ...

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate the first 2 R numbers of each head by the angles of its position: x [T, heads, D]; cos, sin [T, R]."""
        ...

    def gated_activation(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(gate) * up, where gate_up [T, 2 I] is gate and up side by side: [T, I]."""
        ...

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """The activation of each number."""
        ...

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Dense attention without a mask, [N, H, L, D] each, scaled by the root of D."""
        ...

    def plan_attention(self, batch: PagedBatch, num_kv_heads: int, window: int | None = None) -> AttentionPlan:
        """Work out, once per step and window, which blocks each query reads. Shared by all layers of that window."""
        ...

    def write_kv(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: AttentionPlan,
    ) -> None:
        """Put keys and values [T, G, D] of this step into their slots of one layer's cache."""
        ...

    def paged_attention(
        self,
        queries: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: AttentionPlan,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Causal attention of queries [T, H, D] over the cached blocks of their own sequences: [T, H, D]."""
        ...


BACKENDS: Mapping[str, Callable[[], Kernels]] = MappingProxyType({"torch": TorchKernels})
"""Every backend by name. The reference is `torch`."""


class UnknownBackendError(ValueError):
    """No backend of that name."""


def kernels_for(backend: str = "torch") -> Kernels:
    """The kernels of a backend. Raises UnknownBackendError, which lists the names there are."""
    try:
        return BACKENDS[backend]()
    except KeyError:
        raise UnknownBackendError(f"no kernel backend {backend!r}; there are: {', '.join(sorted(BACKENDS))}") from None
