"""Plain weights to int8 or int4 by the compiled kernels."""

from __future__ import annotations

import torch

from kvarn.kernels.cpu import _native
from kvarn.kernels.errors import Fp8WeightsError
from kvarn.kernels.torch.quantize import INT4_GROUP
from kvarn.kernels.weights import MULTIPLIED, Quantization, Weight


def quantize(backend: _native.Backend, weight: torch.Tensor, to: Quantization) -> Weight:
    """A float weight [out, in] as int8 or int4, in the bits of `kvarn.kernels.torch.quantize`.

    Raises Fp8WeightsError.
    """
    if to == "fp8":
        raise Fp8WeightsError
    is_bf16 = weight.dtype == torch.bfloat16
    plain = (weight if is_bf16 else weight.float()).contiguous()
    out, in_features = plain.shape
    if to == "int8":
        values, scales = torch.empty((out, in_features), dtype=torch.int8), torch.empty(out)
        backend.quantize_int8(plain.data_ptr(), is_bf16, out, in_features, values.data_ptr(), scales.data_ptr())
        return Weight(values, scales)
    values = torch.empty((out, in_features), dtype=torch.uint8)
    scales = torch.empty((out, -(-in_features // INT4_GROUP)), dtype=torch.float16)
    multipliers = torch.empty((out, -(-in_features // MULTIPLIED)), dtype=torch.int8)
    backend.quantize_int4(
        plain.data_ptr(),
        is_bf16,
        out,
        in_features,
        values.data_ptr(),
        scales.data_ptr(),
        multipliers.data_ptr(),
    )
    return Weight(values, scales, group=INT4_GROUP, multipliers=multipliers)
