"""Linear layers in torch.

float32 weights are packed by oneDNN on a processor that has it: its products are the fastest for batches of decode rows
(docs/internals/kernels.md), take any number of rows, and their sums do not depend on that number, which plain products'
do (docs/internals/determinism.md). bfloat16 weights are packed only where oneDNN multiplies them natively (AVX-512 or
AMX): elsewhere it refuses to.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation, activate
from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.linear import Norm
from kvarn.kernels.weights import Weight

INT4_BLOCKS = (128, 32)
"""Inputs that share a scale where activations are quantized for int4 weights: the first that divides their groups."""


def rms_norm(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """In float32 throughout; rounded once at the end."""
    x32 = x.float()
    mean_square = x32.square().mean(-1, keepdim=True)
    return (x32 * torch.rsqrt(mean_square + norm.eps)).mul_(norm.weight).to(x.dtype)


class TorchLinear:
    """See `kvarn.kernels.linear.Linear`. A quantized weight is held as the float32 numbers it stands for."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None, activation: Activation | None) -> None:
        plain = weight.format == "float"
        self.source = weight.values.contiguous() if plain else weight.dequantized()
        """[out, in], columns as they are stored."""
        self.bias = bias
        self.activation = activation
        self.quantize_block = {
            "float": None,
            "fp8": None,
            "int8": 0,
            "int4": next((block for block in INT4_BLOCKS if weight.group % block == 0), None),
        }[weight.format]
        """Inputs that share a scale where activations are quantized to int8; 0: all of a token. None: they are not."""
        self.input_order = weight.input_order
        self.adapter_layer = -1
        self.out_features = self.source.shape[0] // (2 if activation else 1)
        self.in_features = self.source.shape[1]
        self.nbytes = self.source.nbytes
        self.packs = plain and _packs(self.source)
        """Whether oneDNN multiplies it, from inputs of the weight's type."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.source, None) if self.packs else None

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        if self.input_order is not None:
            x = x[:, self.input_order]
            norm = None if norm is None else Norm(norm.weight[self.input_order], norm.eps)
        if norm is not None:
            x = rms_norm(x, norm)
        out = self._multiply(x if self.quantize_block is None else fake_quantize(x, self.quantize_block))
        if adapters is not None and self.adapter_layer >= 0:
            adapters.add(self.adapter_layer, x, out)
        if self.activation is not None:
            gate, up = out.chunk(2, -1)
            out = activate(gate, self.activation).mul_(up)
        return out if add_to is None else add_to.add_(out)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(ids, self.source)
        return rows if self.input_order is None else torch.empty_like(rows).index_copy_(1, self.input_order, rows)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self.source.to(x.dtype), self.bias)
        if x.shape[0] == 0:
            return x.new_empty((0, self.source.shape[0]))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out


class TorchHeadProducts:
    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: [H, out, in]."""
        self._weight = weight.transpose(1, 2).contiguous()
        self.nbytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.transpose(0, 1), self._weight.to(x.dtype)).transpose(0, 1).contiguous()


def fake_quantize(x: torch.Tensor, block: int) -> torch.Tensor:
    """x [T, in] rounded to what 127 steps to either side can say: a scale for each `block` inputs (0: each token)."""
    size = x.shape[1]
    block = block or max(size, 1)
    padded = F.pad(x.float(), (0, -size % block)).view(x.shape[0], -1, block)
    peak = padded.abs().amax(-1, keepdim=True)
    inverse = torch.where(peak > 0, 127.0 / peak, 0.0)
    return ((padded * inverse).round() * (peak / 127.0)).view(x.shape[0], -1)[:, :size].to(x.dtype)


def _packs(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
