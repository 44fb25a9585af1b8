"""Packed weights of the compiled kernels as bytes that can be kept; see `kvarn.kernels.packed`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.linear import CpuLinear, LinearError, PackedForm
from kvarn.kernels.linear import Linear
from kvarn.kernels.packed import PackedBytes

PACKED_LAYOUT = "panels-of-16/1"
"""The layouts of csrc/linear/linear.h. Count up when one of them changes: packed weights that were kept are then made
again."""


def packed_bytes(linear: Linear) -> PackedBytes:
    """See `KeepsPackedWeights.packed_bytes`. Raises LinearError for a layer of another backend."""
    if not isinstance(linear, CpuLinear):
        raise LinearError(f"{type(linear).__name__} was not packed by the compiled kernels")
    return PackedBytes(asdict(linear.form), linear.blob, linear.bias)


def linear_of(backend: _native.Backend, packed: PackedBytes) -> CpuLinear:
    """See `KeepsPackedWeights.linear_of`."""
    form: dict[str, Any] = dict(packed.form)
    try:
        return CpuLinear(backend, PackedForm(**form), packed.blob, packed.bias)
    except (TypeError, KeyError, ValueError) as error:  # LinearError is a ValueError
        raise LinearError(f"kept weights of the form {form} cannot be used: {error}") from error
