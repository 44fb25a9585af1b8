"""Plain weights, the base of all formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.errors import UnsupportedQuantizationError

Warn = Callable[[str], None]
"""Tells the operator something, once for each kind of message (what precedes its first bracket)."""


_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class WeightFormat:
    """Weights of linear layers stored as numbers, one float tensor each.

    Quantized formats derive from it: layers that they left plain are read so.
    """

    name: ClassVar[str] = ""
    """Name of the method that quantized the checkpoint; empty: weights are plain."""
    packed_suffix: ClassVar[str] = ".weight"
    """Suffix of the tensor that holds a layer's values."""
    beside_weights: ClassVar[tuple[str, ...]] = ()
    """Suffixes of tensors that belong to a weight, and stand for no numbers of their own."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def read(self, name: str, shape: tuple[int, int]) -> Weight:
        """The weight [out, in] of the layer `name` (without `.weight`).

        Raises a CheckpointError where tensors are missing or of other shapes than the configuration implies, and
        UnsupportedQuantizationError where their numbers mean nothing without scales.
        """
        weight = self.checkpoint.tensor(f"{name}.weight", shape)
        if weight.dtype not in _PLAIN:
            stored = str(weight.dtype).removeprefix("torch.")
            raise UnsupportedQuantizationError(f"{stored} (tensor {name}.weight) without scales that are read here")
        return Weight(weight)

    def read_expert(self, name: str, expert: int, shape: tuple[int, int]) -> Weight:
        """The weight [out, in] of one expert, of a tensor `name` that holds those of all as [experts, in, out].

        Raises as `read`.
        """
        return Weight(self.checkpoint.part(name, expert, (shape[1], shape[0])).t())

    def num_parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Numbers that all tensors (by name) stand for; scales and the like are not counted."""
        return sum(
            math.prod(shape) * (self.numbers_in_word(name) if name.endswith(self.packed_suffix) else 1)
            for name, shape in shapes.items()
            if not name.endswith(self.beside_weights)
        )

    def numbers_in_word(self, name: str) -> int:
        """Numbers in one element of the tensor `name`, which ends with `packed_suffix`."""
        return 1

    def group_of(self, name: str, in_features: int) -> torch.Tensor | None:
        """[in_features] int64: the group of each input, from the tensor `name` where there is one."""
        return self.checkpoint.tensor(name, (in_features,)).long() if name in self.checkpoint else None
