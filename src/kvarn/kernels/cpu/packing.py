"""Weights in the layouts that the compiled kernels read (`csrc/linear/linear.h` describes them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Literal

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.cpu import _native
from kvarn.kernels.device.memory import HugePages, zeros_on_demand
from kvarn.kernels.errors import Fp8WeightsError, KernelInputError
from kvarn.kernels.torch.quantize import INT4_GROUP
from kvarn.kernels.weights import SUB_GROUP, Quantization, Weight

LAYOUT = "panels-of-16/2"
"""Count up when one of the layouts changes: packed weights that were kept in files are then made again."""

ACTIVATION_NUMBERS: Mapping[Activation | None, int] = MappingProxyType(
    {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "sigmoid": 4, "tanh": 5}
)
"""Those of csrc/core/activation.h."""

_FORMAT_NUMBERS: Mapping[str, int] = MappingProxyType({"f32": 0, "bf16": 1, "int8": 2, "int4": 3})

MAX_INT8_INPUTS = (2**31 - 1) // (128 * 127)
"""More products of int8 weights and inputs (which are never -128) might not add up in 32 bits."""


Format = Literal["f32", "bf16", "int8", "int4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """The meaning of a packed weight's bytes, the same for all instruction sets."""

    format: Format
    out: int
    """Rows of the weight: gate and up together where it is gated."""
    in_features: int
    activation: Activation | None = None
    """The gate's; None: the weight is not gated."""
    group: int = 0
    """Inputs that share a scale (int4)."""
    has_zeros: bool = False
    """int4 with zero points of its own."""
    has_sub_scales: bool = False
    """int4 with sub_scales."""

    def native(self) -> _native.PackedWeight:
        """The kernels' view, still without bytes. Raises KernelInputError for a form that cannot be packed."""
        gated = self.activation is not None
        if self.out < 1 or self.in_features < 1 or (gated and self.out % 2):
            raise KernelInputError(
                f"cannot pack a weight [{self.out}, {self.in_features}]" + (" of gate and up" * gated)
            )
        if self.format == "int8" and self.in_features > MAX_INT8_INPUTS:
            raise KernelInputError(f"int8 weights have at most {MAX_INT8_INPUTS} inputs, not {self.in_features}")
        if self.format == "int4" and (self.group < 32 or self.group % 32):
            raise KernelInputError(f"groups of {self.group} inputs cannot be packed: a group is a multiple of 32")
        if self.has_sub_scales and (self.has_zeros or self.group % 128):
            raise KernelInputError(
                "int4 weights with sub_scales have no zero points and groups of a multiple of 128 inputs"
            )
        number = _FORMAT_NUMBERS[self.format]
        return _native.PackedWeight(
            number, self.out, self.in_features, self.group, self.has_zeros, gated, self.has_sub_scales
        )


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out, in_features] as bytes."""

    form: WeightForm
    blob: torch.Tensor
    """uint8 on a 64-byte boundary."""
    bias: torch.Tensor | None = None
    """[out] float32."""
    input_order: torch.Tensor | None = None

    def native(self) -> _native.PackedWeight:
        """The kernels' view of it. Raises KernelInputError where the form is impossible or the bytes do not fit it."""
        native, blob, bias = self.form.native(), self.blob, self.bias
        if blob.dtype != torch.uint8 or blob.shape != (native.size,):
            raise KernelInputError(f"a packed weight needs {native.size} bytes, not {blob.dtype} {tuple(blob.shape)}")
        if blob.data_ptr() % 64 or not blob.is_contiguous():
            raise KernelInputError("the bytes of a packed weight must begin on a 64-byte boundary, without gaps")
        if bias is not None and bias.shape != (self.form.out,):
            raise KernelInputError(f"bias {tuple(bias.shape)} does not fit a weight with {self.form.out} rows")
        native.blob = blob.data_ptr()
        return native


def pack(
    weight: Weight,
    bias: torch.Tensor | None = None,
    activation: Activation | None = None,
    memory: HugePages | None = None,
) -> PackedWeight:
    """Pack a weight [out, in]: bfloat16 stays so, other floats become float32, quantized weights stay quantized.

    With `activation` the weight is gated: gate above up. What is packed lies in `memory`; by default in memory of its
    own. Raises KernelInputError for a shape that cannot be packed, and Fp8WeightsError.
    """
    if weight.format == "fp8":
        raise Fp8WeightsError
    out, in_features = weight.values.shape
    form = WeightForm(
        format=_float_format(weight.values.dtype) if weight.format == "float" else weight.format,
        out=out,
        in_features=in_features,
        activation=activation,
        group=weight.group,
        has_zeros=weight.zeros is not None,
        has_sub_scales=weight.sub_scales is not None,
    )
    native = form.native()
    blob = _room_for(native, memory)
    match form.format:
        case "int8":
            _pack_int8(native, weight, blob)
        case "int4":
            _pack_int4(native, weight, blob)
        case kind:
            rows = (weight.values if kind == "bf16" else weight.values.float()).contiguous()
            _native.pack_float(native, [(rows.data_ptr(), out)], blob.data_ptr())
    return PackedWeight(form, blob, _float(bias), weight.input_order)


def pack_plain(
    backend: _native.Backend,
    parts: Sequence[torch.Tensor],
    to: torch.dtype | Quantization,
    bias: torch.Tensor | None = None,
    activation: Activation | None = None,
    memory: HugePages | None = None,
) -> PackedWeight:
    """Pack float weights [out, in] one below the other, in float32 or bfloat16 or as `kvarn.kernels.torch.quantize`
    quantizes them, to the bytes of `pack`. Parts are read where they are, unless their type must be changed.

    Raises KernelInputError for parts that do not fit together or cannot be packed, and Fp8WeightsError.
    """
    if to == "fp8":
        raise Fp8WeightsError
    if len({part.shape[1] for part in parts}) != 1 or to not in (torch.float32, torch.bfloat16, "int8", "int4"):
        raise KernelInputError(f"cannot pack weights {[tuple(part.shape) for part in parts]} as {to}")
    read = to if isinstance(to, torch.dtype) else reduce(torch.promote_types, (part.dtype for part in parts))
    rows = [part.to(torch.bfloat16 if read == torch.bfloat16 else torch.float32).contiguous() for part in parts]
    form = WeightForm(
        format=_float_format(to) if isinstance(to, torch.dtype) else to,
        out=sum(map(len, rows)),
        in_features=rows[0].shape[1],
        activation=activation,
        group=INT4_GROUP if to == "int4" else 0,
        has_sub_scales=to == "int4",
    )
    native = form.native()
    blob = _room_for(native, memory)
    addresses = [(part.data_ptr(), len(part)) for part in rows]
    if isinstance(to, torch.dtype):
        _native.pack_float(native, addresses, blob.data_ptr())
    else:
        backend.pack_quantized(native, addresses, read == torch.bfloat16, blob.data_ptr())
    return PackedWeight(form, blob, _float(bias))


def _float_format(dtype: torch.dtype) -> Format:
    return "bf16" if dtype == torch.bfloat16 else "f32"


def _room_for(native: _native.PackedWeight, memory: HugePages | None) -> torch.Tensor:
    return zeros_on_demand((native.size,), torch.uint8) if memory is None else memory.take(native.size)


def _float(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.float().contiguous()


def _pack_int8(native: _native.PackedWeight, weight: Weight, blob: torch.Tensor) -> None:
    values, scales, out = weight.values, weight.scales, weight.values.shape[0]
    if scales is None or values.dtype != torch.int8 or scales.dtype != torch.float32 or scales.shape != (out,):
        raise KernelInputError(f"an int8 weight needs int8 values and {out} float32 scales")
    values, scales = values.contiguous(), scales.contiguous()
    _native.pack_int8(native, values.data_ptr(), scales.data_ptr(), blob.data_ptr())


def _pack_int4(native: _native.PackedWeight, weight: Weight, blob: torch.Tensor) -> None:
    values, scales, zeros, sub_scales = weight.values, weight.scales, weight.zeros, weight.sub_scales
    groups = (values.shape[0], -(-values.shape[1] // weight.group))
    if values.dtype != torch.uint8 or int(values.max()) > 15:
        raise KernelInputError("the values of an int4 weight are uint8, 0 to 15")
    if scales is None or scales.dtype != torch.float16 or scales.shape != groups:
        raise KernelInputError(f"an int4 weight with groups of {weight.group} needs float16 scales {list(groups)}")
    if zeros is not None and (zeros.dtype != torch.uint8 or zeros.shape != groups or int(zeros.max()) > 16):
        raise KernelInputError(f"the zero points of an int4 weight are uint8 {list(groups)}, 0 to 16")
    sub_groups = (values.shape[0], -(-values.shape[1] // SUB_GROUP))
    if sub_scales is not None and (
        sub_scales.dtype != torch.int8 or sub_scales.shape != sub_groups or int(sub_scales.abs().max()) > 15
    ):
        raise KernelInputError(f"the sub_scales of an int4 weight are int8 {list(sub_groups)}, -15 to 15")
    # Kept until the call is over: a tensor that is not contiguous is copied.
    held = [None if tensor is None else tensor.contiguous() for tensor in (values, scales, zeros, sub_scales)]
    of_values, of_scales, of_zeros, of_sub_scales = (0 if tensor is None else tensor.data_ptr() for tensor in held)
    _native.pack_int4(native, of_values, of_scales, of_zeros, blob.data_ptr(), of_sub_scales)
