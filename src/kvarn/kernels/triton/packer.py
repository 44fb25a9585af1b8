"""Weights packed for the Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.linear import Linear
from kvarn.kernels.packer import WeightPacker
from kvarn.kernels.triton.experts import TritonExperts, group_experts
from kvarn.kernels.triton.latent import TritonHeadProducts
from kvarn.kernels.triton.linear import TritonLinear, Workspace
from kvarn.kernels.weights import Weight


class TritonPacker(WeightPacker):
    """Packs into tiles: see `kvarn.kernels.triton.device_weight`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._workspace = Workspace(device)

    def preferred_dtype(self) -> torch.dtype:
        """bfloat16; float32 in the interpreter."""
        return torch.float32 if self.torch_device.type == "cpu" else torch.bfloat16

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse float32: the tensor cores do not multiply it; the interpreter does."""
        if self.torch_device.type != "cpu" and dtype != torch.bfloat16:
            raise UnsupportedByBackendError(
                f"the kernels of GPUs multiply bfloat16, not weights in {str(dtype).removeprefix('torch.')} (dtype "
                "float16 is held as float32): set `dtype` to auto or bfloat16, to which weights are rounded, or "
                "`kernels` to torch, which is slow"
            )

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        """See `TritonLinear`. Quantized weights are multiplied with plain activations."""
        device = self.torch_device
        return TritonLinear(weight.to(device), None if bias is None else bias.to(device), activation, self._workspace)

    def head_products(self, weight: torch.Tensor) -> TritonHeadProducts:
        return TritonHeadProducts(weight.to(self.torch_device))

    def group_experts(
        self, gate_up: Sequence[Linear], down: Sequence[Linear], clamp: tuple[float, float] | None
    ) -> TritonExperts | None:
        return group_experts(gate_up, down, clamp)
