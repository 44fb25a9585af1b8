"""Packed weights as bytes, for backends that let them be kept from one start to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from kvarn.kernels.linear import Linear


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """One packed linear layer."""

    form: Mapping[str, str | int | bool | None]
    """What the bytes mean, for the backend that made them."""
    blob: torch.Tensor
    """[n] uint8; begins on a 64-byte boundary, and n is a multiple of 64."""
    bias: torch.Tensor | None
    """float32."""


@runtime_checkable
class KeepsPackedWeights(Protocol):
    """What a backend offers beside `kvarn.kernels.dispatch.Kernels` if its packed weights may be kept."""

    @property
    def packed_layout(self) -> str:
        """Names the layout of packed bytes; changes whenever their meaning does."""
        ...

    def packed_bytes(self, layer: Linear) -> PackedBytes:
        """The bytes of a layer that this backend packed; they are not copied."""
        ...

    def linear_of(self, packed: PackedBytes) -> Linear:
        """The layer again, on the same bytes, which may be a read-only map of a file.

        Raises KernelError where form and bytes do not fit together.
        """
        ...
