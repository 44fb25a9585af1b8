"""Weights as the Triton kernels read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton.tiles import SPLIT_STEP
from kvarn.kernels.weights import SUB_GROUP, Weight

OUTPUTS_TOGETHER = 64
"""Outputs of a tile: see `jit.fragments`."""


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A weight [out, in] as `jit.linear.multiply` reads it. It may have two parts, one below the other: gate and up."""

    values: torch.Tensor
    """Plain: [out, width]. int8, fp8 and, for 4 bits, uint8 [parts, tiles, steps, bytes]: see `jit.fragments`."""
    width: int
    """Inputs of a row as it is held; those behind the real ones count as zero."""
    outputs: int
    """Outputs of a part."""
    scales: torch.Tensor | None = None
    """8 bits: [parts, tiles, 64] float32; 4 bits: words [parts, tiles, groups, 64], see `jit.linear._of_group`."""
    group: int = 0
    has_zeros: bool = False
    has_sub_scales: bool = False

    @property
    def format(self) -> str:
        return "4 bits" if self.group else "plain" if self.scales is None else "8 bits"

    @property
    def is_quantized(self) -> bool:
        return self.scales is not None

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for weights that one compiled kernel reads."""
        values = self.values
        return self.format, values.dtype, values.shape, self.width, self.group, self.has_zeros, self.has_sub_scales

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @staticmethod
    def of(weight: Weight, parts: int = 1) -> DeviceWeight:
        """Bring a weight into this form, where it is."""
        out, size = weight.values.shape
        if weight.format == "float":
            return DeviceWeight(weight.values.contiguous(), size, out // parts)
        assert weight.scales is not None
        if not weight.group:
            width = -(-size // SPLIT_STEP) * SPLIT_STEP
            values = F.pad(weight.values.view(torch.uint8), (0, width - size)).view(out, -1, SPLIT_STEP)
            tiles = _by_thread(_by_tile(values, parts)).view(weight.values.dtype)
            return DeviceWeight(tiles, width, out // parts, _by_tile(weight.scales.float(), parts).contiguous())
        group = next(size for size in (128, 64, 32, weight.group) if weight.group % size == 0)
        if group % SUB_GROUP:
            raise KernelInputError(f"groups of {group} inputs: these kernels take multiples of {SUB_GROUP}")
        width = -(-size // group) * group
        values = F.pad(weight.values, (0, width - size)).view(out, -1, 2, group // 2)
        return DeviceWeight(
            _by_thread(_by_tile(values[:, :, 0] | values[:, :, 1] << 4, parts)),
            width,
            out // parts,
            _by_tile(_words(weight, group, width), parts).contiguous(),
            group,
            weight.zeros is not None,
            weight.sub_scales is not None,
        )

    def separate(self) -> Iterator[DeviceWeight]:
        """Each part alone; a plain weight as a whole."""
        if self.scales is None:
            yield replace(self, outputs=len(self.values))
            return
        for part in range(len(self.values)):
            yield replace(self, values=self.values[part : part + 1], scales=self.scales[part : part + 1])

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, [len(ids), width], in float32 or, where it is plain, in its own type."""
        if self.scales is None:
            return F.embedding(ids, self.values)
        part, tile, row = ids // self.outputs, ids % self.outputs // OUTPUTS_TOGETHER, ids % self.outputs % 64
        numbers = _of_rows(self.values.view(torch.uint8), part, tile, row).view(self.values.dtype)
        scales = self.scales[part, tile, ..., row]
        if not self.group:
            return numbers.flatten(1).float() * scales[:, None]
        codes = torch.cat([numbers & 15, numbers >> 4], 2).view(len(ids), self.width).float()
        zeros = (scales >> 16 & 255).repeat_interleave(self.group, 1) if self.has_zeros else 8
        codes -= zeros
        bytes_of = scales.contiguous().view(torch.int8).view(len(ids), self.width // self.group, -1)
        if self.has_sub_scales:
            sub_scales = bytes_of[:, :, -(self.group // SUB_GROUP) :].flatten(1)
            codes *= (sub_scales.float() - 16).repeat_interleave(SUB_GROUP, 1)
        halves = bytes_of[:, :, :2].contiguous().view(torch.float16).flatten(1)
        return codes * halves.float().repeat_interleave(self.group, 1)


def _words(weight: Weight, group: int, width: int) -> torch.Tensor:
    """[out, groups]: what `jit.linear._of_group` says of each."""
    out, repeats = len(weight.values), weight.group // group
    assert weight.scales is not None

    def by_group(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.repeat_interleave(repeats, 1)[:, : width // group].contiguous()

    words = by_group(weight.scales).view(torch.int16).int() & 0xFFFF
    if weight.zeros is not None:
        words |= by_group(weight.zeros).int() << 16
    if weight.sub_scales is not None:
        each = group // SUB_GROUP
        if each > 2:
            words = words.long()
        bytes_of = words.view(torch.int8).view(out, width // group, -1)
        padded = F.pad(weight.sub_scales, (0, width // SUB_GROUP - weight.sub_scales.shape[1]))
        bytes_of[:, :, -each:] = padded.view(out, width // group, each) + 16
    return words


def _by_tile(tensor: torch.Tensor, parts: int) -> torch.Tensor:
    """[out, ...] as [parts, tiles, ..., 64], with zeros behind the outputs of each part."""
    own = tensor.reshape(parts, -1, *tensor.shape[1:])
    outputs = own.shape[1]
    tiles = -(-outputs // OUTPUTS_TOGETHER)
    own = F.pad(own, [0, 0] * (own.ndim - 2) + [0, tiles * OUTPUTS_TOGETHER - outputs])
    return own.reshape(parts, tiles, OUTPUTS_TOGETHER, *tensor.shape[1:]).movedim(2, -1)


def _by_thread(tiles: torch.Tensor) -> torch.Tensor:
    """Bytes [parts, tiles, steps, inputs, 64] as [parts, tiles, steps, bytes], in the order of `jit.fragments`."""
    *before, inputs, _ = tiles.shape
    sixteens = min(16, inputs // 2) // 8
    own = tiles.reshape(*before, -1, sixteens, 2, 4, 2, 4, 2, 8)
    # Loads 3, sixteens of a load 4, eights 5, thread of inputs 6, neighbours 7, warp 8, row + 8 9, thread of outputs 10
    return own.permute(0, 1, 2, 3, 8, 10, 6, 4, 5, 9, 7).reshape(*before, -1)


def _of_rows(values: torch.Tensor, part: torch.Tensor, tile: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Bytes of some outputs, [rows, steps, inputs]: see `_by_thread`."""
    *before, size = values.shape
    own = values.view(*before, -1, 4, 8, 4, min(16, size // 128) // 8, 2, 2, 2)
    found = own[part, tile, :, :, row // 16, row % 8, :, :, :, row // 8 % 2]
    # [rows, steps, loads, thread of inputs, sixteens, eights, neighbours]
    return found.permute(0, 1, 2, 4, 5, 3, 6).flatten(2)
