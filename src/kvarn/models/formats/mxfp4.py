"""MXFP4 (OCP Microscaling, 2023) as gpt-oss stores its experts, several in one tensor.

For experts' weights [E, out, in]:

    <name>_blocks  [E, out, in / 32, 16]  uint8: two numbers of 4 bits (E2M1), the first in the lower bits
    <name>_scales  [E, out, in / 32]      uint8: exponents (E8M0) of 2, 127 added

All other tensors are plain. Each number is exact in bfloat16, which is what they are held in unless they are quantized
at load; int4 with a scale for 32 inputs does not hold them exactly (its steps are even, those of E2M1 are not).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.formats.base import Warn, WeightFormat
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.specs.quantization import QuantizationConfig

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_BLOCK = 32
"""Inputs that share a scale."""


class Mxfp4Format(WeightFormat):
    """See `kvarn.models.formats.base.WeightFormat`. Weights are widened when they are read."""

    beside_weights = ("_scales",)

    def __init__(self, checkpoint: Checkpoint, config: QuantizationConfig, warn: Warn) -> None:
        super().__init__(checkpoint)

    def read_expert(self, name: str, expert: int, shape: tuple[int, int]) -> Weight:
        if f"{name}_blocks" not in self.checkpoint:
            return super().read_expert(name, expert, shape)
        out_features, in_features = shape
        groups = -(-in_features // _BLOCK)
        blocks = self.checkpoint.part(f"{name}_blocks", expert, (out_features, groups, _BLOCK // 2))
        scales = self.checkpoint.part(f"{name}_scales", expert, (out_features, groups))
        numbers = torch.tensor(_E2M1, dtype=torch.bfloat16)
        pairs = torch.stack([numbers[(blocks & 15).long()], numbers[(blocks >> 4).long()]], -1)
        values = torch.ldexp(pairs.flatten(2).float(), scales.int().sub_(127).unsqueeze(-1)).flatten(1)
        return Weight(values[:, :in_features].bfloat16())

    def num_parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        plain = {name: shape for name, shape in shapes.items() if not name.endswith("_blocks")}
        packed = sum(2 * math.prod(shape) for name, shape in shapes.items() if name.endswith("_blocks"))
        return super().num_parameters(plain) + packed
