"""The one place where a model meets a backend of kernels.

A model calls operations through `Kernels` and never learns which backend runs them. The reference one (torch) is
complete, and every other is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape, KVCache, KvDtype, PagedBatch, Rotation
from kvarn.kernels.draw import DrawParams
from kvarn.kernels.errors import MissingKernelsError, UnknownBackendError
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.torch_backend import TorchKernels
from kvarn.kernels.weights import Weight

AttentionPlan = Any
"""What a backend worked out for the attention of one step; only the backend that made it reads it."""


class Kernels(Protocol):
    """What every backend offers. T tokens of one step; other letters as said where they stand."""

    @property
    def name(self) -> str:
        """The backend's name, for logs and metrics."""
        ...

    def preferred_dtype(self) -> torch.dtype:
        """Type of plain weights that this backend is fastest with on this machine."""
        ...

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Type of the numbers between two operations of a model whose weights are of type `dtype`."""
        ...

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        """Bring a weight [out, in] (and bias [out]) once, at load, into the form this backend multiplies fastest.

        With `activation` the weight is gated: gate above up, and the layer gives activation(gate) * up.
        """
        ...

    def rms_norm(
        self,
        x: torch.Tensor,
        norm: Norm,
        *,
        mean_square: torch.Tensor | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Root-mean-square norm of the last dimension, computed in float32, in x's dtype.

        `mean_square` [..., 1] replaces the mean of squares where x is only one shard of the vector to be normalised.
        `add_to`: the result is added to it in place, and it is returned.
        """
        ...

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Layer norm of the last dimension, in x's dtype."""
        ...

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """The activation of each number."""
        ...

    def plan_bidirectional(self, lengths: torch.Tensor, heads: HeadShape) -> AttentionPlan:
        """Work out, once per pass of an encoder, the attention of S texts of these lengths [S] int64, none empty."""
        ...

    def bidirectional_attention(self, qkv: torch.Tensor, heads: HeadShape, plan: AttentionPlan) -> torch.Tensor:
        """Attention of each token of a text to all of them, scaled by the root of D.

        Queries, keys and values of the texts, one text after the other, [T, 3 H D]. Returns [T, H D].
        """
        ...

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """An empty cache whose memory is supplied as it is first used.

        Raises UnsupportedByBackendError where the backend has no cache of that type.
        """
        ...

    def plan_attention(self, batch: PagedBatch, num_kv_heads: int, window: int | None = None) -> AttentionPlan:
        """Work out, once per step and window, which blocks each query reads. Shared by all layers of that window.

        `window`: tokens a query sees, itself included; None sees all before it.
        """
        ...

    def paged_attention(
        self,
        qkv: torch.Tensor,
        heads: HeadShape,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: AttentionPlan,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """All of a layer's attention between its two products.

        Queries, keys and values of the step [T, (H + 2 G) D]: `norm` (weight [H + G, D]) of each query and key head
        where there is one, rotation, keys and values into the cache, then causal attention of each query over the
        cached blocks of its own sequence. Returns [T, H D]. `softcap` squeezes scores to softcap * tanh(s / softcap).
        """
        ...

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[R] int64 token and [R] float32 logit of the maximum of each row of logits [R, vocab] float32.

        Ties go to the lowest id; a row that holds NaN gives the first one.
        """
        ...

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: DrawParams
    ) -> torch.Tensor:
        """A token for each of some rows, as `kvarn.kernels.draw` defines it.

        Args:
            logits: [N, vocab] float32; -inf masks a token.
            rows: [R] int64, the rows of `logits` to draw for.
            row_max: [R] float32, the largest logit of each of them; finite.
            params: of the R rows.

        Returns:
            [R] int64 token ids.
        """
        ...


def _cpu_kernels() -> Kernels:
    try:
        from kvarn.kernels.cpu.backend import CpuKernels  # needs the compiled module, which may not be installed
    except ImportError as error:
        raise MissingKernelsError(error) from error
    return CpuKernels()


BACKENDS: Mapping[str, Callable[[], Kernels]] = MappingProxyType({"torch": TorchKernels, "cpu": _cpu_kernels})
"""Every backend by name. The reference is `torch`."""


def kernels_for(backend: str = "torch") -> Kernels:
    """The kernels of a backend.

    Raises:
        UnknownBackendError: No such backend; the message lists the names there are.
        MissingKernelsError: The backend is not installed.
    """
    make = BACKENDS.get(backend)
    if make is None:
        raise UnknownBackendError(f"no kernel backend {backend!r}; there are: {', '.join(sorted(BACKENDS))}")
    return make()
