"""The attention of a layer: one class for each kind, beside its sizes in `kvarn.shapes.attention`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch, Rotation
from kvarn.kernels.linear import HeadProducts, Linear, Norm
from kvarn.shapes import KvDtype
from kvarn.specs.spec import RopeSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerStep:
    """Shared by layers with equal attention and rotation in one step."""

    plan: Any
    """Made by `Attention.plan` of such a layer."""
    rotation: Rotation
    adapters: AdapterBatch | None
    cache: KVCache
    slots: torch.Tensor
    """See `PagedBatch.slot_mapping`."""


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """The parts of an attention that kernels may compute together with its whole layer."""

    heads: HeadShape
    qkv: Linear
    query_key_norm: Norm | None
    output: Linear


Products: TypeAlias = tuple[Linear, *tuple[Linear | HeadProducts, ...]]


class Attention(ABC):
    """The attention of one layer: this rank's weights. `kvarn.shapes.attention` has its sizes."""

    __slots__ = ()

    @property
    @abstractmethod
    def products(self) -> Products:
        """All of its products. The first takes the hidden state."""

    @property
    def plain(self) -> PlainAttention | None:
        """None where it does more than kernels compute together with its layer."""
        return None

    @abstractmethod
    def new_cache(self, num_layers: int, num_blocks: int, num_states: int, dtype: KvDtype) -> KVCache:
        """An empty cache for so many layers like this one: blocks, or recurrent states."""

    @abstractmethod
    def plan(self, batch: PagedBatch) -> Any:
        """The kernels' plan of a step, the same for all layers like this one."""

    @abstractmethod
    def forward(
        self, x: torch.Tensor, norm: Norm | None, add_to: torch.Tensor | None, layer: int, step: LayerStep
    ) -> torch.Tensor:
        """x [T, hidden], `norm` applied to it, to [T, hidden]; added in place to `add_to` where given.

        The step's tokens are in the cache's `layer` afterwards. Layers with blocks and layers with states are counted
        apart.
        """


class LayerGroups(Generic[T]):
    """Groups of layers with the same rotation and the same attention, by number: they share a plan in each step.

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
        self._factors = [rope.attention_factor for rope, _ in distinct]
        self._frequencies = [
            torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=device) for rope, _ in distinct
        ]

    def __len__(self) -> int:
        return len(self.kinds)

    def rotation(self, group: int, positions: torch.Tensor) -> Rotation:
        angles = positions[:, None].float() * self._frequencies[group]
        return Rotation(cos=angles.cos() * self._factors[group], sin=angles.sin() * self._factors[group])
