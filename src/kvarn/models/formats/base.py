"""What every format of stored weights offers, and how bits are taken out of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from kvarn.models.weight_parts import WeightPart

Note = Callable[[str], None]
"""Says something the operator should know; once for each kind of message (what stands before its first bracket)."""


class WeightFormat(Protocol):
    """How a checkpoint stores the weights of linear layers."""

    @property
    def name(self) -> str:
        """Of the method that quantised the checkpoint; empty where weights are plain."""
        ...

    def read(self, name: str, shape: tuple[int, int]) -> WeightPart:
        """The weight [out, in] of the layer `name` (without `.weight`).

        Layers that the checkpoint left plain are read as such. Raises a CheckpointError where tensors are missing or of
        other shapes than the configuration implies.
        """
        ...

    def num_parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Numbers that all tensors (by name) stand for; scales and the like are not counted."""
        ...


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words [..., n] int32 to [..., n * 32 / bits] uint8: the lowest bits of each word first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    parts: torch.Tensor = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return parts.to(torch.uint8).flatten(-2)
