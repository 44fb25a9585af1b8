"""Linear layers on weights packed for the compiled kernels (`csrc/linear/linear.h` describes the layouts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.memory import allocate
from kvarn.kernels.errors import KernelError
from kvarn.kernels.linear import Norm
from kvarn.kernels.weights import Weight, weight_shape

Format = Literal["f32", "bf16", "int8", "int4"]

_FORMATS: Mapping[Format, int] = MappingProxyType({"f32": 0, "bf16": 1, "int8": 2, "int4": 3})
_ACTIVATIONS: Mapping[Activation | None, int] = MappingProxyType({None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3})


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
        return _native.PackedWeight(
            _FORMATS[self.format], self.out, self.in_features, self.group, self.has_zeros, gated
        )

    @property
    def nbytes(self) -> int:
        """Size of the blob."""
        return self.native().size


class CpuLinear:
    """See `kvarn.kernels.linear.Linear`. Immutable; several threads may call it, but not on the same backend."""

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
        if blob.dtype != torch.uint8 or blob.shape != (native.size,) or blob.data_ptr() % 64:
            raise LinearError(f"a packed weight needs {native.size} bytes on a 64-byte boundary, not {blob.shape}")
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
        self._activation = _ACTIVATIONS[form.activation]
        self._bias = 0 if self.bias is None else self.bias.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self.blob.nbytes

    def __call__(
        self, x: torch.Tensor, *, norm: Norm | None = None, add_to: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [T, in_features] float32 times the weight: [T, out_features] float32.

        Raises LinearError where x or add_to has another shape or type, or rows that are not contiguous.
        """
        out = x.new_empty((x.shape[0], self.out_features)) if add_to is None else add_to
        self._check(x, out)
        if norm is None:
            norm_weight, eps = 0, 0.0
        else:
            if norm.weight.shape != (self.in_features,) or norm.weight.dtype != torch.float32:
                raise LinearError(f"the norm of {self.in_features} inputs needs as many float32 weights")
            norm_weight, eps = norm.weight.data_ptr(), norm.eps
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


def pack_linear(
    backend: _native.Backend, weight: Weight, bias: torch.Tensor | None = None, activation: Activation | None = None
) -> CpuLinear:
    """Pack a weight [out, in]: bfloat16 stays so, other floats become float32, quantised weights stay quantised.

    With `activation` the weight is gated: gate above up. Raises LinearError for a shape that cannot be packed.
    """
    out, in_features = weight_shape(weight)
    if not isinstance(weight, torch.Tensor):
        raise LinearError(f"no packer for {type(weight).__name__}")
    rows = weight.contiguous() if weight.dtype == torch.bfloat16 else weight.float().contiguous()
    form = PackedForm(
        format="bf16" if rows.dtype == torch.bfloat16 else "f32",
        out=out,
        in_features=in_features,
        activation=activation,
    )
    native = form.native()
    blob = allocate(native.size)
    _native.pack_float(native, rows.data_ptr(), blob.data_ptr())
    return CpuLinear(backend, form, blob, bias)
