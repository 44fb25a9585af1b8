"""What every backend of kernels offers to models and to the sampler."""

from __future__ import annotations

from typing import Protocol

import torch

from kvarn.costs.decoder import KvDtype
from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, Rotation
from kvarn.kernels.linear import LayerNorm, Linear, Norm
from kvarn.kernels.sampling import SamplingTensors
from kvarn.kernels.weights import Weight


class AttentionPlan(Protocol):
    """Which blocks the queries of one step read: worked out once, run by each layer with the same window."""

    def run(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """All of a layer's attention between its two products.

        Queries, keys and values of the step [T, (H + 2 G) D]: `norm` (weight [H + G, D]) of each query and key head
        where there is one, rotation, keys and values into the cache, then causal attention of each query over the
        cached blocks of its own sequence. Returns [T, H D]. With `softcap`, scores become softcap * tanh(s / softcap).
        """
        ...


class BidirectionalPlan(Protocol):
    """Where the texts of one pass of an encoder begin: worked out once, run by each layer."""

    def run(self, qkv: torch.Tensor) -> torch.Tensor:
        """Attention of each token of a text to all of them, scaled by the root of D.

        Queries, keys and values of the texts, one text after the other, [T, 3 H D]. Returns [T, H D].
        """
        ...


class Kernels(Protocol):
    """What every backend offers. T tokens of one step; other letters as said where they are used."""

    name: str
    """For logs and metrics."""
    device: torch.device
    """Where it computes: weights, caches and all arguments are there."""

    def memory_bytes(self) -> int:
        """Memory of the device that this process may use."""
        ...

    def preferred_dtype(self) -> torch.dtype:
        """Type of plain weights that this backend is fastest with on this device."""
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

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """Layer norm of the last dimension, in x's dtype."""
        ...

    def activation(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """The activation of each number."""
        ...

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        """An empty cache; in main memory, pages are supplied as they are first used.

        Raises UnsupportedByBackendError where the backend has no cache of that type.
        """
        ...

    def plan_attention(self, batch: PagedBatch, heads: HeadShape, window: int | None = None) -> AttentionPlan:
        """The attention of one step. `window`: tokens a query sees, itself included; None sees all before it."""
        ...

    def plan_bidirectional(self, lengths: torch.Tensor, heads: HeadShape) -> BidirectionalPlan:
        """The attention of S texts of these lengths [S] int64, none empty."""
        ...

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[R] int64 token and [R] float32 logit of the maximum of each row of logits [R, vocab] float32.

        Ties go to the lowest id; a row that holds NaN gives the first one.
        """
        ...

    def draw_tokens(
        self, logits: torch.Tensor, rows: torch.Tensor, row_max: torch.Tensor, params: SamplingTensors
    ) -> torch.Tensor:
        """A token for each of some rows, as `kvarn.kernels.sampling` defines it.

        Args:
            logits: [N, vocab] float32; -inf masks a token.
            rows: [R] int64, the rows of `logits` to draw for.
            row_max: [R] float32, the largest logit of each of them; finite.
            params: of the R rows.

        Returns:
            [R] int64 token ids.
        """
        ...
