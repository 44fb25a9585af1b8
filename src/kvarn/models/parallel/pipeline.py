"""Pipeline parallelism (GPipe, Huang et al. 2019): which layers a rank holds, and how activations pass on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kvarn.models.errors import ModelError


class StageError(ModelError):
    """The model cannot be divided into so many stages."""


class Neighbours(Protocol):
    """The ranks of the stages before and behind that have the same part of each layer."""

    def send(self, tensor: torch.Tensor) -> None: ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers of a model. The default: all of them."""

    index: int = 0
    count: int = 1
    neighbours: Neighbours | None = None

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, num_layers: int) -> range:
        """The stage's layers; stages differ by one layer at most.

        Raises StageError where there are more stages than layers.
        """
        if self.count > num_layers:
            raise StageError(
                f"{num_layers} layers cannot be divided into {self.count} stages: lower pipeline_parallel_size"
            )
        return range(self.index * num_layers // self.count, (self.index + 1) * num_layers // self.count)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        assert self.neighbours is not None, "several stages have neighbours"
        return self.neighbours.receive(shape, dtype)

    def send(self, tensor: torch.Tensor) -> None:
        assert self.neighbours is not None, "several stages have neighbours"
        self.neighbours.send(tensor)


ALL_LAYERS = Stage()  # the only stage of a model that is not divided so
