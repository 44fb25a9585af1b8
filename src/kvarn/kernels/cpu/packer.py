"""Weights packed for the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.linear import CpuHeadProducts, CpuLinear
from kvarn.kernels.cpu.packing import LAYOUT, PackedWeight, WeightForm, pack, pack_plain
from kvarn.kernels.device.memory import HugePages
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Linear
from kvarn.kernels.packer import WeightPacker
from kvarn.kernels.weights import Quantization, Weight


class CpuPacker(WeightPacker):
    """Packs into huge pages: see `kvarn.kernels.cpu.packing`."""

    layout = LAYOUT
    may_move = False

    def __init__(self, backend: _native.Backend) -> None:
        super().__init__(torch.device("cpu"))
        self._backend = backend
        self._memory = HugePages()

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16: half the bytes of float32, and any instruction set widens it as fast as it is read."""
        return torch.bfloat16

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> CpuLinear:
        return CpuLinear(self._backend, pack(weight, bias, activation, self._memory))

    def pack_plain(
        self,
        parts: Sequence[torch.Tensor],
        to: torch.dtype | Quantization,
        bias: torch.Tensor | None = None,
        activation: Activation | None = None,
    ) -> CpuLinear:
        """One compiled pass, which joins nothing first."""
        return CpuLinear(self._backend, pack_plain(self._backend, parts, to, bias, activation, self._memory))

    def head_products(self, weight: torch.Tensor) -> CpuHeadProducts:
        return CpuHeadProducts([self.pack_linear(Weight(head.contiguous())) for head in weight])

    def save_linear(self, layer: Linear) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Raises KernelInputError for a layer of another backend."""
        if not isinstance(layer, CpuLinear):
            raise KernelInputError(f"{type(layer).__name__} was not packed by the compiled kernels")
        packed = layer.packed
        tensors = {"blob": packed.blob, "bias": packed.bias, "input_order": packed.input_order}
        return asdict(packed.form), {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def load_linear(self, form: dict[str, Any], tensors: dict[str, torch.Tensor]) -> CpuLinear:
        """A copy in huge pages."""
        try:
            tensors = {**tensors, "blob": self._memory.copy(tensors["blob"])}
            return CpuLinear(self._backend, PackedWeight(WeightForm(**form), **tensors))
        except (TypeError, KeyError, ValueError) as error:
            raise KernelInputError(f"kept weights of the form {form} cannot be used: {error}") from error
