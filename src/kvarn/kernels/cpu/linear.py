"""Linear layers on weights packed for the compiled kernels (`csrc/linear/linear.h` describes the layouts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.elementwise import ACTIVATION_NUMBERS
from kvarn.kernels.errors import KernelError
from kvarn.kernels.linear import Norm
from kvarn.kernels.memory import zeros_on_demand
from kvarn.kernels.weights import Int4Weight, Int8Weight, Weight, weight_shape

Format = Literal["f32", "bf16", "int8", "int4"]

_FORMATS: Mapping[Format, int] = MappingProxyType({"f32": 0, "bf16": 1, "int8": 2, "int4": 3})

MAX_INT8_INPUTS = (2**31 - 1) // (128 * 127)
"""More products of int8 weights and inputs (which are never -128) might not add up in 32 bits."""


class LinearError(KernelError):
    """A tensor that a linear layer cannot take; the message says what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """What the bytes of a packed weight mean."""

    format: Format
    out: int
    """Rows of the weight: gate and up together where it is gated."""
    in_features: int
    activation: Activation | None = None
    """Of the gate: the weight is gated where there is one."""
    group: int = 0
    """Inputs that share a scale (int4)."""
    has_zeros: bool = False
    """int4 with zero points of its own."""

    def native(self) -> _native.PackedWeight:
        """The kernels' description of it, without a blob yet. Raises LinearError for an impossible shape."""
        gated = self.activation is not None
        if self.out < 1 or self.in_features < 1 or (gated and self.out % 2):
            raise LinearError(f"cannot pack a weight [{self.out}, {self.in_features}]" + (" of gate and up" * gated))
        if self.format == "int8" and self.in_features > MAX_INT8_INPUTS:
            raise LinearError(f"int8 weights have at most {MAX_INT8_INPUTS} inputs, not {self.in_features}")
        if self.format == "int4" and (self.group < 32 or self.group % 32):
            raise LinearError(f"groups of {self.group} inputs cannot be packed: a group is a multiple of 32")
        return _native.PackedWeight(
            _FORMATS[self.format], self.out, self.in_features, self.group, self.has_zeros, gated
        )

    @property
    def nbytes(self) -> int:
        """Size of the blob."""
        return self.native().size


class CpuLinear:
    """See `kvarn.kernels.linear.Linear`. Immutable; calls from several threads on one backend take turns."""

    def __init__(
        self, backend: _native.Backend, form: PackedForm, blob: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Take over packed bytes.

        Args:
            backend: Instruction set that multiplies. The bytes are the same for all.
            form: What the bytes mean.
            blob: [form.nbytes] uint8 on a 64-byte boundary; may be a read-only map of a file.
            bias: [form.out] or None.

        Raises:
            LinearError: The blob is not of that size or boundary, or the bias not of that shape.
        """
        native = form.native()
        if blob.dtype != torch.uint8 or blob.shape != (native.size,):
            raise LinearError(f"a packed weight needs {native.size} bytes, not {blob.dtype} {tuple(blob.shape)}")
        if blob.data_ptr() % 64 or not blob.is_contiguous():
            raise LinearError("the bytes of a packed weight must begin on a 64-byte boundary, without gaps")
        if bias is not None and bias.shape != (form.out,):
            raise LinearError(f"bias {tuple(bias.shape)} does not fit a weight with {form.out} rows")
        native.blob = blob.data_ptr()
        self.form = form
        self.blob = blob
        self.bias = None if bias is None else bias.float().contiguous()
        self.out_features = form.out // (1 if form.activation is None else 2)
        self.in_features = form.in_features
        self._native = native
        self._multiply = backend.linear
        self._activation = ACTIVATION_NUMBERS[form.activation]
        self._bias = 0 if self.bias is None else self.bias.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self.blob.nbytes

    def __call__(
        self, x: torch.Tensor, *, norm: Norm | None = None, add_to: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [T, in_features] float32 times the weight: [T, out_features] float32.

        Raises LinearError where x or add_to has another shape or type, or rows that are not contiguous or overlap.
        """
        out = x.new_empty((x.shape[0], self.out_features)) if add_to is None else add_to
        self._check(x, out)
        if norm is None:
            norm_weight, eps = 0, 0.0
        else:
            weight = norm.weight
            if weight.shape != (self.in_features,) or weight.dtype != torch.float32 or not weight.is_contiguous():
                raise LinearError(f"the norm of {self.in_features} inputs needs as many float32 weights, side by side")
            norm_weight, eps = weight.data_ptr(), norm.eps
        self._multiply(
            self._native,
            x.data_ptr(),
            x.shape[0],
            x.stride(0),
            norm_weight,
            eps,
            self._activation,
            self._bias,
            out.data_ptr(),
            out.stride(0),
            add_to is not None,
        )
        return out

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` [N] int64 of the weight that was packed: [N, in_features] float32.

        Raises LinearError where an id is not that of a row.
        """
        ids = ids.contiguous()
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise LinearError(f"row ids are int64 [N], not {ids.dtype} {tuple(ids.shape)}")
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.form.out):
            raise LinearError(f"row ids must lie between 0 and {self.form.out - 1}")
        out = torch.empty((len(ids), self.in_features))
        _native.unpack_rows(self._native, ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def _check(self, x: torch.Tensor, out: torch.Tensor) -> None:
        for name, tensor, size in (("x", x, self.in_features), ("add_to", out, self.out_features)):
            if tensor.dtype != torch.float32 or tensor.shape != (x.shape[0], size):
                raise LinearError(f"{name} must be float32 [T, {size}], not {tensor.dtype} {tuple(tensor.shape)}")
            if size > 1 and tensor.stride(1) != 1:
                raise LinearError(f"the rows of {name} must be contiguous")
        if len(out) > 1 and out.stride(0) < self.out_features:
            raise LinearError("the rows of add_to must not overlap: threads write them at the same time")


def pack_linear(
    backend: _native.Backend, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
) -> CpuLinear:
    """Pack a weight [out, in]: bfloat16 stays so, other floats become float32, quantised weights stay quantised.

    With `activation` the weight is gated: gate above up. Raises LinearError for a shape that cannot be packed.
    """
    form = _form_of(weight, activation)
    native = form.native()
    blob = zeros_on_demand((native.size,), torch.uint8)
    match weight:
        case Int8Weight():
            _pack_int8(native, weight, blob)
        case Int4Weight():
            _pack_int4(native, weight, blob)
        case _:
            rows = weight.contiguous() if form.format == "bf16" else weight.float().contiguous()
            _native.pack_float(native, rows.data_ptr(), blob.data_ptr())
    return CpuLinear(backend, form, blob, bias)


def _form_of(weight: Weight, activation: Activation | None) -> PackedForm:
    out, in_features = weight_shape(weight)
    format_name: Format = "f32"
    group, has_zeros = 0, False
    match weight:
        case Int8Weight():
            format_name = "int8"
        case Int4Weight():
            format_name, group, has_zeros = "int4", weight.group, weight.zeros is not None
        case _ if weight.dtype == torch.bfloat16:
            format_name = "bf16"
    return PackedForm(
        format=format_name,
        out=out,
        in_features=in_features,
        activation=activation,
        group=group,
        has_zeros=has_zeros,
    )


def _pack_int8(native: _native.PackedWeight, weight: Int8Weight, blob: torch.Tensor) -> None:
    out = weight.values.shape[0]
    if weight.values.dtype != torch.int8 or weight.scales.dtype != torch.float32 or weight.scales.shape != (out,):
        raise LinearError(f"an int8 weight needs int8 values and {out} float32 scales")
    values, scales = weight.values.contiguous(), weight.scales.contiguous()
    _native.pack_int8(native, values.data_ptr(), scales.data_ptr(), blob.data_ptr())


def _pack_int4(native: _native.PackedWeight, weight: Int4Weight, blob: torch.Tensor) -> None:
    out, in_features = weight.values.shape
    groups = (out, -(-in_features // weight.group))
    if weight.values.dtype != torch.uint8 or int(weight.values.max()) > 15:
        raise LinearError("the values of an int4 weight are uint8, 0 to 15")
    if weight.scales.dtype != torch.float16 or weight.scales.shape != groups:
        raise LinearError(f"an int4 weight with groups of {weight.group} needs float16 scales {list(groups)}")
    zeros = weight.zeros
    if zeros is not None and (zeros.dtype != torch.uint8 or zeros.shape != groups or int(zeros.max()) > 16):
        raise LinearError(f"the zero points of an int4 weight are uint8 {list(groups)}, 0 to 16")
    values, scales = weight.values.contiguous(), weight.scales.contiguous()
    zeros = None if zeros is None else zeros.contiguous()
    _native.pack_int4(
        native, values.data_ptr(), scales.data_ptr(), 0 if zeros is None else zeros.data_ptr(), blob.data_ptr()
    )
