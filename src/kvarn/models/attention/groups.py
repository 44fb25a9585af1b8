"""Layers that rotate by the same angles and see as far: they share an attention plan in each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvarn.kernels.batch import Rotation
from kvarn.models.spec import LayerSpec


class LayerKinds:
    """The kinds of a model's layers, by number."""

    def __init__(self, layers: Sequence[LayerSpec], device: torch.device) -> None:
        """`device`: where angles are computed."""
        kinds = [(layer.rope, layer.window, layer.is_recurrent) for layer in layers]
        distinct = list(dict.fromkeys(kinds))
        self.of_layer = [distinct.index(kind) for kind in kinds]
        """The kind of each layer."""
        self.windows = [window for _, window, _ in distinct]
        """Tokens that a query sees, by kind; None: all."""
        self._factors = [rope.attention_factor for rope, *_ in distinct]
        self._frequencies = [
            torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=device) for rope, *_ in distinct
        ]

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def half_rotated(self) -> list[int]:
        """Angles of a token, by kind."""
        return [len(frequencies) for frequencies in self._frequencies]

    def rotation(self, kind: int, positions: torch.Tensor) -> Rotation:
        """The angles of tokens at positions [T]."""
        angles = positions[:, None].float() * self._frequencies[kind]
        return Rotation(cos=angles.cos() * self._factors[kind], sin=angles.sin() * self._factors[kind])
