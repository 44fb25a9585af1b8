"""Bytes of weights as the kernels hold them: those of processors (csrc/linear/linear.h) and those of GPUs.

Tests pack weights and count their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Quantization = Literal["int8", "int4", "fp8"]
"""The form of quantized weights: int8 or fp8, a scale an output; int4, a scale for 128 inputs of an output, times a
whole number for 32 of them."""

Dtype = Literal["float32", "bfloat16"]
"""Type of plain weights as they are held."""

Kernels = Literal["cpu", "gpu"]
"""The compiled kernels of processors, or those of GPUs."""

DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}

INT4_GROUP = 128
"""Inputs that share a scale in weights quantized at load."""
SUB_GROUP = 32
"""Inputs that share a sub_scale."""

LINE = 64
"""Bytes of a line: sections of packed weights begin with one, adapters are made of them."""
PANEL = 16
"""Outputs that lie together."""
_IN_STEP = 64
"""Processors: inputs are a multiple of this."""
_TILE, _SPLIT_STEP = 64, 128
"""GPUs: outputs of a tile, inputs of 8-bit weights are a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    format: Dtype | Quantization
    group: int = 0
    """int4: inputs that share a scale."""
    has_zeros: bool = False
    has_sub_scales: bool = False
    reordered: bool = False
    """Inputs are taken in another order, which is held beside it (GPTQ's desc_act)."""

    @staticmethod
    def quantized(to: Quantization) -> PackedForm:
        """The form of plain weights that are quantized at load."""
        group = INT4_GROUP if to == "int4" else 0
        return PackedForm(format=to, group=group, has_sub_scales=to == "int4")

    def num_bytes(self, kernels: Kernels, out: int, inputs: int, *, gated: bool = False) -> int:
        """Bytes of a weight [out, inputs], without a bias. `gated`: gate above up, `out` counts both."""
        return self._on_cpu(out, inputs, gated) if kernels == "cpu" else self._on_gpu(out, inputs, gated)

    def _on_cpu(self, out: int, inputs: int, gated: bool) -> int:
        width, panels = _up(inputs, _IN_STEP), 2 * _parts(out // 2, PANEL) if gated else _parts(out, PANEL)
        match self.format:
            case "int8":
                return panels * width * PANEL + 2 * _up(4 * panels * PANEL, LINE)
            case "int4":
                outputs, groups = panels * PANEL, _parts(width, self.group)
                scales = _up(2 * outputs * groups, LINE) + _up(outputs * groups * self.has_zeros, LINE)
                return outputs * width // 2 + scales + _up(outputs * (width // SUB_GROUP) * self.has_sub_scales, LINE)
            case "fp8":
                raise ValueError("the compiled kernels of processors hold no fp8 weights: take int8")
            case plain:
                return panels * width * PANEL * DTYPE_BYTES[plain]

    def _on_gpu(self, out: int, inputs: int, gated: bool) -> int:
        if self.format == "float32" or self.format == "bfloat16":
            return out * inputs * DTYPE_BYTES[self.format]
        outputs = 2 * _up(out // 2, _TILE) if gated else _up(out, _TILE)
        if self.format != "int4":
            return outputs * (_up(inputs, _SPLIT_STEP) + 4)
        group = next(size for size in (128, 64, 32, self.group) if self.group % size == 0)
        width = _up(inputs, group)
        word = 8 if self.has_sub_scales and group > 2 * SUB_GROUP else 4
        return outputs * (width // 2 + word * (width // group))


def _parts(size: int, step: int) -> int:
    return -(-size // step)


def _up(size: int, step: int) -> int:
    return _parts(size, step) * step
