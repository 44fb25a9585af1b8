"""Attention of one step: what is worked out once and run by each layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kvarn.kernels.batch import Rotation
from kvarn.kernels.linear import Norm


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention of one layer beside its heads, the same in all steps."""

    scale: float
    """Factor of the scores."""
    norm: Norm | None = None
    """Norm of each query and key head: weight [H + G, D]."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: torch.Tensor | None = None
    """[H] float32: a score of each head that takes its share of the weights and has no value (gpt-oss)."""


class AttentionMetadata(Protocol):
    """Blocks that the queries of one step read: worked out once, run by each layer with the same window."""

    def run(
        self, qkv: torch.Tensor, rotation: Rotation, layer: AttentionLayer, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """All of a layer's attention between its two products.

        Queries, keys and values of the step [T, (H + 2 G) D]: norm, rotation, keys and values into the cache (`keys`,
        `values`), then causal attention of each query over the cached blocks of its own sequence. Returns [T, H D].
        """
        ...


class LatentMetadata(Protocol):
    """Blocks of latent rows that the queries of one step read (DeepSeek-V2 2024): worked out once for all layers."""

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """The step's rows [T, size] go into the cache; then causal attention of queries [T, H, size] over the cached
        rows of their own sequences. All heads share a row as their key; its first numbers are their value. Returns
        [T, H, value_size].
        """
        ...


class BidirectionalMetadata(Protocol):
    """The texts of one pass of an encoder: worked out once, run by each layer."""

    def run(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """Attention of each token of a text to those of the text that it sees, scaled by the root of D.

        Queries, keys and values of the texts, one text after the other, [T, 3 H D]; queries and keys are rotated first
        where that is given. Returns [T, H D].
        """
        ...
