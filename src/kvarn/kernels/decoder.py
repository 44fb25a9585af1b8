"""Layers of a decoder in one call of the kernels, for one pass or for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.attention import AttentionMetadata
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, Rotation
from kvarn.kernels.linear import Linear, Norm
from kvarn.shapes import KvDtype


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Norm, product, attention, product; norm, gated product, product; each half is added to the residual stream."""

    attention_norm: Norm | None
    qkv: Linear
    query_key_norm: Norm | None  # the norm of each query and key head
    output: Linear
    attention_output_norm: Norm | None
    mlp_norm: Norm | None
    gate_up: Linear
    down: Linear
    mlp_output_norm: Norm | None
    kind: int
    """The number of its window and rotation."""


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """Layers that differ in weights, windows and rotations alone."""

    heads: HeadShape
    kv_dtype: KvDtype
    layers: Sequence[LayerParts]
    scale: float
    softcap: float | None
    """Both of attention, as in `AttentionMetadata.run`."""

    @property
    def linears(self) -> list[Linear]:
        return [each for x in self.layers for each in (x.qkv, x.output, x.gate_up, x.down)]


class DecoderLayers(Protocol):
    """Such layers, computed in one call."""

    def run(
        self,
        hidden: torch.Tensor,
        cache: KVCache,
        plans: Sequence[AttentionMetadata],
        rotations: Sequence[Rotation],
        adapters: AdapterBatch | None,
        first: int,
        last: int,
    ) -> None:
        """Compute some of the layers, to the bits that single calls give.

        Args:
            hidden: [T, size] in the activations' type: the residual stream, in place.
            cache: Of all layers.
            plans: Of the step, by kind of layer.
            rotations: Of the T tokens, by kind.
            adapters: See `Linear`.
            first: The first of the layers.
            last: The one behind the last.
        """
        ...


@dataclass(frozen=True, slots=True)
class GreedyParts:
    """A decoder whose embedding is the weight of its head."""

    layers: DecoderLayers
    norm: Norm
    head: Linear
    windows: Sequence[int | None]  # by kind of layer
    rotations: Sequence[Callable[[torch.Tensor], Rotation]]
    """The angles of positions [N], by kind of layer."""


class GreedyDecoder(Protocol):
    """A decoder that goes on with its own likeliest tokens, many passes in one call: what a draft model does."""

    def run(
        self, token_ids: torch.Tensor, batch: PagedBatch, active: npt.NDArray[np.int64], vocab_size: int
    ) -> npt.NDArray[np.int64]:
        """Compute a batch, then one pass for each of `active` over the tokens drawn for that many sequences.

        Args:
            token_ids: [T] int64.
            batch: The first pass. Its block tables hold the blocks of all passes.
            active: Sequences of each further pass, the first ones of the batch; never more than in the pass before.
            vocab_size: Tokens that may be drawn, the first ones.

        Returns:
            [1 + passes, S] the likeliest token after each pass, of the sequences in it.
        """
        ...
