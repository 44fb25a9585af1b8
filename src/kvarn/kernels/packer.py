"""Weights in the form in which a backend multiplies them: packed once, at load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.experts import GroupedExperts
from kvarn.kernels.linear import HeadProducts, Linear
from kvarn.kernels.torch.linear import TorchHeadProducts, TorchLinear
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Quantization, Weight, concatenate


class WeightPacker:
    """The reference, in plain torch; other backends override what they hold in another form."""

    layout: str | None = None
    """Names the layout of packed weights; changes whenever their meaning does. None: they cannot be kept in files."""
    may_move = True
    """Whether the tensors that layers were packed into may get memory at other addresses later."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    def preferred_dtype(self) -> torch.dtype:
        """Type of plain weights that this backend is fastest with on this device.

        bfloat16, except on processors without instructions for it: there a bfloat16 product of more than four rows is
        about seven times slower than a float32 one.
        """
        slow = self.torch_device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.float32 if slow else torch.bfloat16

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise UnsupportedByBackendError where plain weights of a type are not multiplied."""

    def quantize(self, weight: torch.Tensor, to: Quantization) -> Weight:
        """A float weight [out, in] with fewer bits, on this device; the same bits on all."""
        return quantize(weight.to(self.torch_device), to)

    def pack_linear(
        self, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
    ) -> Linear:
        """Bring a weight [out, in] (and bias [out]) into the form this backend multiplies fastest.

        With `activation` the weight is gated: gate above up, and the layer gives activation(gate) * up.
        """
        device = self.torch_device
        return TorchLinear(weight.to(device), None if bias is None else bias.to(device), activation)

    def pack_plain(
        self,
        parts: Sequence[torch.Tensor],
        to: torch.dtype | Quantization,
        bias: torch.Tensor | None = None,
        activation: Activation | None = None,
    ) -> Linear:
        """`pack_linear` of float weights [out, in] one below the other, in a type or quantized.

        Raises UnsupportedByBackendError where the backend does not multiply such weights.
        """
        weight = concatenate([Weight(part) for part in parts], self.torch_device)
        assert weight is not None, "all are float"
        # The plain weight is let go before its successor is packed: the device may have no room for all three.
        weight = Weight(weight.values.to(to)) if isinstance(to, torch.dtype) else self.quantize(weight.values, to)
        return self.pack_linear(weight, bias, activation)

    def head_products(self, weight: torch.Tensor) -> HeadProducts:
        """Products by head, of a float weight [H, out, in]."""
        return TorchHeadProducts(weight.to(self.torch_device))

    def group_experts(
        self, gate_up: Sequence[Linear], down: Sequence[Linear], clamp: tuple[float, float] | None
    ) -> GroupedExperts | None:
        """The experts of a layer, by their packed layers, as two products over all tokens; None where this backend
        computes expert after expert. The layers can be used as before.

        `clamp`: limit and slope of the gate of gpt-oss, where that joins gate and up; then the first layers are packed
        without an activation.
        """
        return None

    def save_linear(self, layer: Linear) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The meaning of a layer's bytes, as JSON values, and its tensors by name, which are not copied.

        `blob` (uint8, a multiple of 64 bytes) must begin on a 64-byte boundary when it is loaded.
        """
        raise UnsupportedByBackendError("only the compiled kernels keep packed weights")

    def load_linear(self, form: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Linear:
        """The layer again, from the same bytes, which may be a read-only map of a file.

        Raises KernelError where form and tensors do not fit together.
        """
        raise UnsupportedByBackendError("only the compiled kernels keep packed weights")
