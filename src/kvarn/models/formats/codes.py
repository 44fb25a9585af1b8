"""Whole numbers with scales and zero points, which all formats come down to, into what the kernels multiply."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvarn.kernels.weights import Int4Weight, Int8Weight
from kvarn.models.formats.base import Note
from kvarn.models.weight_parts import WeightPart

_GROUP_STEP = 32
"""Groups that the kernels know are multiples of this."""
_WHOLE_ROW_STEP = 64
_LARGEST_SCALE_ERROR = 0.01
"""Scales are kept in half precision; where that changes one by more than this, the weight is served plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """weight[n, k] = (values[n, k] - zeros[n, g]) * scales[n, g], where g = group_of[k], or k // group."""

    bits: int
    values: torch.Tensor
    """[out, in] uint8."""
    scales: torch.Tensor
    """[out, groups], a float type."""
    zeros: torch.Tensor | None
    """[out, groups] uint8; None: 2^(bits - 1) everywhere."""
    group: int
    """Inputs of a group."""
    group_of: torch.Tensor | None = None
    """[in] int64: the group of each input, where they are not simply in order."""

    @property
    def middle(self) -> int:
        """The zero point of a symmetric format."""
        return 1 << (self.bits - 1)

    @property
    def symmetric(self) -> bool:
        """Whether each zero point is the middle."""
        return self.zeros is None or bool((self.zeros == self.middle).all())

    def dequantised(self) -> torch.Tensor:
        """[out, in] float32."""
        group_of = torch.arange(self.values.shape[1]) // self.group if self.group_of is None else self.group_of
        zeros = float(self.middle) if self.zeros is None else self.zeros.float()[:, group_of]
        return (self.values.float() - zeros) * self.scales.float()[:, group_of]


def weight_part(codes: Codes, name: str, note: Note) -> WeightPart:
    """As int4 or int8 where the kernels have that form, else as the numbers it stands for, with a note."""
    if codes.bits == 8 and codes.scales.shape[1] == 1 and codes.symmetric:
        return WeightPart(int8_weight((codes.values.to(torch.int16) - 128).to(torch.int8), codes.scales[:, 0]))
    if codes.bits == 4:
        in_order, order = _by_groups(codes)
        if in_order is not None and (weight := _int4_weight(in_order)) is not None:
            return WeightPart(weight, order)
    what = "8-bit weights with several scales an output or with zero points" if codes.bits == 8 else "such 4-bit groups"
    note(
        f"the kernels have no form for {what}: they are served as plain weights, or as int8 with --quantization int8 "
        f"({name})"
    )
    return WeightPart(codes.dequantised())


def int8_weight(values: torch.Tensor, scales: torch.Tensor) -> Int8Weight:
    """values [out, in] int8, scales [out] or a single one.

    -128, which some tools write for the largest negative weight of a row, becomes -127: the products of two registers
    of 8-bit numbers need both signs of every number.
    """
    return Int8Weight(values.clamp(min=-127), scales.float().flatten().expand(values.shape[0]).contiguous())


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words [..., n] int32 to [..., n * 32 / bits] uint8, 4 or 8 bits each: the lowest bits of each word first."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], -1).flatten(-2)


def _by_groups(codes: Codes) -> tuple[Codes | None, torch.Tensor | None]:
    """Columns sorted by their group, and the input of each column. No codes where groups are of different sizes."""
    if codes.group_of is None:
        return codes, None
    order = codes.group_of.argsort(stable=True)
    if not torch.equal(codes.group_of[order], torch.arange(len(order)) // codes.group):
        return None, None
    if torch.equal(order, torch.arange(len(order))):
        return replace(codes, group_of=None), None
    return replace(codes, values=codes.values[:, order], group_of=None), order


def _int4_weight(codes: Codes) -> Int4Weight | None:
    size, group = codes.values.shape[1], codes.group
    if group >= size:
        group = -(-size // _WHOLE_ROW_STEP) * _WHOLE_ROW_STEP
    scales = codes.scales.half()
    exact = codes.scales.float()
    if group % _GROUP_STEP or bool(((scales.float() - exact).abs() > _LARGEST_SCALE_ERROR * exact.abs()).any()):
        return None
    return Int4Weight(codes.values, scales.contiguous(), None if codes.symmetric else codes.zeros, group)
