"""What every format of stored weights offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kvarn.models.errors import UnsupportedModelError
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


class UnsupportedQuantizationError(UnsupportedModelError):
    """The checkpoint is quantised in a way that Kvarn does not read."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the checkpoint is quantised with {what}, which is not supported. Kvarn reads GPTQ and AWQ (gemm) with "
            "4 or 8 bits, and compressed-tensors W8A8 (int8, activations dynamic), W8A16 and W4A16. Take such a "
            "checkpoint, or the plain one with --quantization int8 or int4"
        )
