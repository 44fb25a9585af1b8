"""Weights as numbers: one float tensor each."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvarn.models.checkpoint import Checkpoint
from kvarn.models.weight_parts import WeightPart


class PlainFormat:
    """See `kvarn.models.formats.base.WeightFormat`."""

    name = ""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str, shape: tuple[int, int]) -> WeightPart:
        """The tensor `name`.weight."""
        return WeightPart(self._checkpoint.tensor(f"{name}.weight", shape))

    def num_parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Every number."""
        return sum(math.prod(shape) for shape in shapes.values())
