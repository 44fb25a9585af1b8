"""Whole numbers with scales and zero points, which all formats come down to, into what the kernels multiply."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.weights import Weight
from kvarn.models.formats.base import Warn

_GROUP_STEP = 32
"""Groups that the kernels know are multiples of this."""
_WHOLE_ROW_STEP = 64
_LARGEST_SCALE_ERROR = 0.01
"""Scales are kept in half precision; where that changes one by more than this, the weight is served plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedValues:
    """weight[n, k] = (values[n, k] - zeros[n, g]) * scales[n, g], where g = group_of[k], or k // group."""

    bits: int
    values: torch.Tensor
    """[out, in] uint8."""
    scales: torch.Tensor
    """[out, groups], a float type."""
    zeros: torch.Tensor | None
    """[out, groups] uint8; None: 2^(bits - 1) everywhere."""
    group: int  # inputs of a group
    group_of: torch.Tensor | None = None
    """[in] int64: the group of each input, where they are not simply in order."""

    def weight(self, name: str, warn: Warn) -> Weight:
        """Make int4 or int8 where the kernels have that form, else plain numbers, with a warning."""
        middle = 1 << (self.bits - 1)
        zeros = None if self.zeros is None or bool((self.zeros == middle).all()) else self.zeros
        if self.bits == 8 and self.scales.shape[1] == 1 and zeros is None:
            return int8_weight((self.values.to(torch.int16) - 128).to(torch.int8), self.scales[:, 0])
        if self.bits == 4 and (weight := self._int4_weight(zeros)) is not None:
            return weight
        eight = "8-bit weights with several scales an output or with zero points"
        what = eight if self.bits == 8 else "such 4-bit groups"
        warn(
            f"the kernels have no form for {what}: they are served as plain weights, or as int8 with --quantization "
            f"int8 ({name})"
        )
        group_of = torch.arange(self.values.shape[1]) // self.group if self.group_of is None else self.group_of
        centers = float(middle) if zeros is None else zeros.float()[:, group_of]
        return Weight((self.values.float() - centers) * self.scales.float()[:, group_of])

    def _int4_weight(self, zeros: torch.Tensor | None) -> Weight | None:
        """Columns sorted by their group; None where groups have different or unknown sizes, or scales do not fit."""
        values, size, group, order = self.values, self.values.shape[1], self.group, None
        if self.group_of is not None:
            order = self.group_of.argsort(stable=True)
            if not torch.equal(self.group_of[order], torch.arange(size) // group):
                return None
            if torch.equal(order, torch.arange(size)):
                order = None
            else:
                values = values[:, order]
        if group >= size:
            group = -(-size // _WHOLE_ROW_STEP) * _WHOLE_ROW_STEP
        scales, exact = self.scales.half(), self.scales.float()
        if group % _GROUP_STEP or bool(((scales.float() - exact).abs() > _LARGEST_SCALE_ERROR * exact.abs()).any()):
            return None
        return Weight(values, scales.contiguous(), zeros, group, order)


def int8_weight(values: torch.Tensor, scales: torch.Tensor) -> Weight:
    """values [out, in] int8, scales [out] or a single one.

    -128, which some tools write for the largest negative weight of a row, becomes -127: the products of two registers
    of 8-bit numbers need both signs of every number.
    """
    return Weight(values.clamp(min=-127), scales.float().flatten().expand(values.shape[0]).contiguous())


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words [..., n] int32 to [..., n * 32 / bits] uint8, 4 or 8 bits each: the lowest bits of each word first."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], -1).flatten(-2)
