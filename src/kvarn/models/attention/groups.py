"""Layers with the same rotation and the same attention: they share a plan in each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import torch

from kvarn.kernels.batch import Rotation
from kvarn.models.spec import RopeSpec

T = TypeVar("T")


class LayerGroups(Generic[T]):
    """Groups of layers, by number.

    Args:
        layers: The rotary embedding of each layer, and its kind of attention or its window.
        device: Of the angles.
    """

    def __init__(self, layers: Iterable[tuple[RopeSpec, T]], device: torch.device) -> None:
        members = list(layers)
        distinct = list(dict.fromkeys(members))
        self.of_layer = [distinct.index(each) for each in members]
        """The group of each layer."""
        self.kinds = [kind for _, kind in distinct]
        """The attention of each group."""
        self._factors = [rope.attention_factor for rope, _ in distinct]
        self._frequencies = [
            torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=device) for rope, _ in distinct
        ]

    def __len__(self) -> int:
        return len(self.kinds)

    def rotation(self, group: int, positions: torch.Tensor) -> Rotation:
        """The angles of tokens at positions [T]."""
        angles = positions[:, None].float() * self._frequencies[group]
        return Rotation(cos=angles.cos() * self._factors[group], sin=angles.sin() * self._factors[group])
