"""A weight in the form in which it is multiplied.

Packing was measured with torch 2.13 on two AMD Zen 3 cores that were also doing other work (float32, weight
1024 x 3072, one thread, billions of operations per second of processor time):

    rows            1      4      8     32    256
    plain         7.3   11.7   16.9   40.5   56.7
    oneDNN pack   8.8   19.2   29.0   52.9   58.5
    MKL pack      7.8   13.9   21.7   36.8   68.8   (and it must know the number of rows when it packs)

oneDNN's is the fastest for batches of decode rows, takes any number of rows, and its sums do not depend on their
number, which plain products' do (docs/determinism.md). So float32 weights are packed by oneDNN on a CPU that has it.
bfloat16 weights are packed only where oneDNN multiplies them natively (AVX-512 or AMX): elsewhere it refuses to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One linear layer, ready for its backend."""

    weight: torch.Tensor
    """[out, in], or the backend's packed form of it."""
    bias: torch.Tensor | None
    """[out]."""
    out_features: int
    in_features: int
    is_onednn: bool = False
    """The weight is packed by oneDNN."""


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """Pack a weight [out, in] where that makes its products faster."""
    out_features, in_features = weight.shape
    weight = weight.contiguous()
    packable = _packs(weight)
    if packable:
        weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return PackedLinear(weight, bias, out_features, in_features, packable)


def multiply(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """x [T, in] times the weight, plus the bias: [T, out]. T may be 0."""
    if not packed.is_onednn:
        return F.linear(x, packed.weight, packed.bias)
    if x.shape[0] == 0:
        return x.new_empty((0, packed.out_features))
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed.weight, packed.bias, "none", [], "")
    return out


def _packs(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
