"""Weights as the Triton kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.weights import MULTIPLIED, Weight


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A weight [out, in] as `jit.linear.multiply` reads it."""

    values: torch.Tensor
    """[out, width]: plain, int8 or fp8; 4 bits: uint8 [out, width / 2]."""
    width: int
    """Inputs of a row as it is held; those behind the real ones count as zero."""
    scales: torch.Tensor | None = None
    """8 bits: [out] float32; 4 bits: a word for each group, see `jit.linear._of_group`."""
    group: int = 0
    has_zeros: bool = False
    has_multipliers: bool = False

    @property
    def format(self) -> str:
        """As the kernel knows it."""
        return "4 bits" if self.group else "plain" if self.scales is None else "8 bits"

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for weights that one compiled kernel reads."""
        values = self.values
        return self.format, values.dtype, values.shape, self.width, self.group, self.has_zeros, self.has_multipliers

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @staticmethod
    def of(weight: Weight) -> DeviceWeight:
        """Bring a weight into this form, where it is."""
        if weight.format == "float":
            return DeviceWeight(weight.values.contiguous(), weight.values.shape[1])
        assert weight.scales is not None
        if not weight.group:
            return DeviceWeight(weight.values.contiguous(), weight.values.shape[1], weight.scales.float().contiguous())
        group = next(size for size in (128, 64, 32, weight.group) if weight.group % size == 0)
        if group % MULTIPLIED:
            raise KernelInputError(f"groups of {group} inputs: these kernels take multiples of {MULTIPLIED}")
        out, size = weight.values.shape
        width = -(-size // group) * group
        values = F.pad(weight.values, (0, width - size)).view(out, -1, 2, group // 2)
        repeats = weight.group // group

        def by_group(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.repeat_interleave(repeats, 1)[:, : width // group].contiguous()

        words = by_group(weight.scales).view(torch.int16).int() & 0xFFFF
        if weight.zeros is not None:
            words |= by_group(weight.zeros).int() << 16
        if weight.multipliers is not None:
            each = group // MULTIPLIED
            if each > 2:
                words = words.long()
            bytes_of = words.view(torch.int8).view(out, width // group, -1)
            padded = F.pad(weight.multipliers, (0, width // MULTIPLIED - weight.multipliers.shape[1]))
            bytes_of[:, :, -each:] = padded.view(out, width // group, each)
        return DeviceWeight(
            (values[:, :, 0] | values[:, :, 1] << 4).reshape(out, -1),
            width,
            words.contiguous(),
            group,
            weight.zeros is not None,
            weight.multipliers is not None,
        )

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, [len(ids), width], in float32 or, where it is plain, in its own type."""
        values = F.embedding(ids, self.values) if self.format == "plain" else self.values[ids]
        if self.scales is None:
            return values
        if not self.group:
            return values.float() * self.scales[ids, None]
        halves = values.view(len(ids), -1, 1, self.group // 2)
        codes = torch.cat([halves & 15, halves >> 4], 2).view(len(ids), self.width).float()
        words = self.scales[ids]
        zeros = (words >> 16 & 255).repeat_interleave(self.group, 1) if self.has_zeros else 8
        codes -= zeros
        bytes_of = words.view(torch.int8).view(len(ids), self.width // self.group, -1)
        if self.has_multipliers:
            multipliers = bytes_of[:, :, -(self.group // MULTIPLIED) :].flatten(1)
            codes *= multipliers.float().repeat_interleave(MULTIPLIED, 1)
        scales = bytes_of[:, :, :2].contiguous().view(torch.float16).flatten(1)
        return codes * scales.float().repeat_interleave(self.group, 1)
