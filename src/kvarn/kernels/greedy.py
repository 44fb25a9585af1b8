"""A decoder that goes on with its own likeliest tokens, many passes in one call: what a draft model does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.linear import Linear, Norm


@dataclass(frozen=True, slots=True)
class GreedyLayer:
    """Norm, product, attention, product; norm, gated product, product; each half is added to the residual stream."""

    attention_norm: Norm | None
    qkv: Linear
    query_key_norm: Norm | None
    """Of each head."""
    output: Linear
    mlp_norm: Norm | None
    gate_up: Linear
    down: Linear
    kind: int
    """Of its window and its rotation."""


@dataclass(frozen=True, slots=True)
class GreedyParts:
    """A decoder of such layers whose embedding is the weight of its head."""

    heads: HeadShape
    layers: Sequence[GreedyLayer]
    norm: Norm
    head: Linear
    scale: float
    softcap: float | None
    """Of attention, as in `AttentionPlan.run`."""
    windows: Sequence[int | None]
    """By kind of layer."""
    half_rotated: Sequence[int]
    """Angles of a token, by kind of layer."""

    @property
    def linears(self) -> list[Linear]:
        """All products."""
        layers = self.layers
        return [self.head, *(each for x in layers for each in (x.qkv, x.output, x.gate_up, x.down))]


class GreedyDecoder(Protocol):
    """Passes of such a decoder over its cache."""

    def run(
        self,
        token_ids: torch.Tensor,
        batch: PagedBatch,
        rotations: Sequence[Rotation],
        active: npt.NDArray[np.int64],
        vocab_size: int,
    ) -> npt.NDArray[np.int64]:
        """Compute a batch, then one pass for each of `active` over the tokens drawn for that many sequences.

        Args:
            token_ids: [T] int64.
            batch: The first pass. Its block tables hold the blocks of all passes.
            rotations: By kind, of the T tokens and then of those of each further pass.
            active: Sequences of each further pass, the first ones of the batch; never more than in the pass before.
            vocab_size: Tokens that may be drawn, the first ones.

        Returns:
            [1 + passes, S] the likeliest token after each pass, of the sequences in it.
        """
        ...
