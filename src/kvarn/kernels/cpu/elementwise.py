"""Norms and activations in the compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.errors import KernelError
from kvarn.kernels.linear import Norm

ACTIVATION_NUMBERS: Mapping[Activation | None, int] = MappingProxyType(
    {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "sigmoid": 4, "tanh": 5}
)
"""Those of csrc/core/activation.h."""


class ElementwiseError(KernelError):
    """Numbers that the compiled activations cannot take; the message says what they need."""


class NormShapeError(KernelError):
    """Rows that the compiled norm cannot take; the message says what it needs."""


def rms_norm(backend: _native.Backend, x: torch.Tensor, norm: Norm, add_to: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, size] float32, rows contiguous, normed: a new tensor, or added in place to `add_to` [T, size]."""
    out = torch.empty(x.shape) if add_to is None else add_to
    size = norm.weight.shape[-1]
    for name, tensor in (("x", x), ("add_to", out)):
        if tensor.dtype != torch.float32 or tensor.shape != (x.shape[0], size) or (size > 1 and tensor.stride(1) != 1):
            raise NormShapeError(f"{name} must be float32 [T, {size}] with contiguous rows, not {tuple(tensor.shape)}")
    if len(out) > 1 and out.stride(0) < size:
        raise NormShapeError("the rows of add_to must not overlap: threads write them at the same time")
    if norm.weight.dim() != 1 or norm.weight.dtype != torch.float32 or not norm.weight.is_contiguous():
        raise NormShapeError(f"the norm of {size} numbers needs as many float32 weights, side by side")
    backend.rms_norm(
        x.data_ptr(),
        x.shape[0],
        size,
        x.stride(0),
        norm.weight.data_ptr(),
        norm.eps,
        out.data_ptr(),
        out.stride(0),
        add_to is not None,
    )
    return out


def activate(backend: _native.Backend, x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """x float32 of any shape, contiguous: a new tensor."""
    if x.dtype != torch.float32 or not x.is_contiguous():
        raise ElementwiseError(f"activations need contiguous float32 numbers, not {x.dtype} with strides {x.stride()}")
    out = torch.empty_like(x)
    backend.activate(x.data_ptr(), x.numel(), ACTIVATION_NUMBERS[activation], out.data_ptr())
    return out
