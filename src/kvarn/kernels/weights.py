"""A weight as a checkpoint gives it, plain or quantized: cut into a rank's part, joined with others, widened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import torch

from kvarn.kernels.errors import KernelInputError
from kvarn.shapes.packing import SUB_GROUP as SUB_GROUP
from kvarn.shapes.packing import Quantization as Quantization

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight [out, in] of a linear layer: float numbers, or numbers of fewer bits with scales.

    int8: values[n, k] * scales[n]; multiplied with activations quantized to int8, a scale for each token.
    fp8: values[n, k] * scales[n]; multiplied with plain activations.
    int4: (values[n, k] - zeros[n, g]) * sub_scales[n, k // 32] * scales[n, g], where g = k // group.
    """

    values: torch.Tensor
    """[out, in]: a float type; int8, -127 to 127; `FP8`; or for int4 uint8, 0 to 15."""
    scales: torch.Tensor | None = None
    """int8 and fp8: [out] float32. int4: [out, in / group] float16."""
    zeros: torch.Tensor | None = None
    """int4: [out, in / group] uint8, 0 to 15 (16 where a format counts from one); None: 8 everywhere."""
    group: int = 0
    """int4: inputs that share a scale, a multiple of 32; the last group may be shorter."""
    input_order: torch.Tensor | None = None
    """[in] int64: column k multiplies input `input_order[k]`; None: columns are in the order of the inputs."""
    sub_scales: torch.Tensor | None = None
    """int4 without zeros: [out, in / 32] int8, -15 to 15; None: 1 everywhere."""

    @property
    def format(self) -> Literal["float", "int8", "int4", "fp8"]:
        if self.scales is None:
            return "float"
        return "int4" if self.group else "fp8" if self.values.dtype == FP8 else "int8"

    def dequantized(self) -> torch.Tensor:
        """[out, in] float32: the numbers the weight stands for, columns as they are stored."""
        match self.format:
            case "int8" | "fp8":
                return self.values.float() * self._scales[:, None]
            case "int4":
                zeros = 8.0 if self.zeros is None else self._of_columns(self.zeros.float())
                centred = self.values.float() - zeros
                if self.sub_scales is not None:
                    centred *= self.sub_scales.float().repeat_interleave(SUB_GROUP, 1)[:, : self.values.shape[1]]
                return centred * self._of_columns(self._scales.float())
            case _:
                return self.values.float()

    def in_input_order(self) -> torch.Tensor:
        """[out, in] float32, columns in the order of the inputs."""
        weight = self.dequantized()
        return weight if self.input_order is None else torch.empty_like(weight).index_copy_(1, self.input_order, weight)

    def rows(self, rows: range | torch.Tensor) -> Weight:
        """Some of the outputs: neighbours, or those of these numbers [N] int64, in their order."""
        part = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        tensors = (self.scales, self.zeros, self.sub_scales)
        scales, zeros, sub_scales = (None if tensor is None else tensor[part] for tensor in tensors)
        return replace(self, values=self.values[part], scales=scales, zeros=zeros, sub_scales=sub_scales)

    def columns(self, columns: range) -> Weight:
        """Some of the inputs. Raises KernelInputError where they cut a group, or where columns are reordered."""
        if self.input_order is not None:
            raise KernelInputError("a weight quantized with its inputs reordered (desc_act) cannot be cut by inputs")
        start, stop = columns.start, columns.stop
        values = self.values[:, start:stop]
        if not self.group:
            return replace(self, values=values)
        if start % self.group or (stop % self.group and stop != self.values.shape[1]):
            raise KernelInputError(f"inputs {start} to {stop} cut a group of {self.group} inputs that share a scale")
        groups = slice(start // self.group, -(-stop // self.group))
        zeros = None if self.zeros is None else self.zeros[:, groups]
        sub_scales = self.sub_scales
        if sub_scales is not None:
            sub_scales = sub_scales[:, start // SUB_GROUP : -(-stop // SUB_GROUP)]
        return replace(self, values=values, scales=self._scales[:, groups], zeros=zeros, sub_scales=sub_scales)

    def to(self, device: torch.device) -> Weight:
        tensors = (self.scales, self.zeros, self.sub_scales, self.input_order)
        scales, zeros, sub_scales, order = (None if tensor is None else tensor.to(device) for tensor in tensors)
        return Weight(self.values.to(device), scales, zeros, self.group, order, sub_scales)

    @property
    def _scales(self) -> torch.Tensor:
        assert self.scales is not None, "a plain weight has no scales"
        return self.scales

    def _of_columns(self, of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.repeat_interleave(self.group, 1)[:, : self.values.shape[1]]


def concatenate(weights: Sequence[Weight], device: torch.device) -> Weight | None:
    """Weights one below the other on a device, to which each is copied once; None where they are quantized in different
    ways."""
    first = weights[0]
    if len(weights) == 1:
        return first.to(device)
    same = all(
        weight.format == first.format
        and weight.group == first.group
        and (weight.sub_scales is None) == (first.sub_scales is None)
        and _equal(weight.input_order, first.input_order)
        for weight in weights
    )
    if not same:
        return None
    scales = [weight.scales for weight in weights if weight.scales is not None]
    zeros = None
    if any(weight.zeros is not None for weight in weights):
        eights = (torch.full(scale.shape, 8, dtype=torch.uint8) for scale in scales)
        own = [eight if w.zeros is None else w.zeros for w, eight in zip(weights, eights, strict=True)]
        zeros = _stacked(own, device)
    sub_scales = [weight.sub_scales for weight in weights if weight.sub_scales is not None]
    return replace(
        first,
        values=_stacked([weight.values for weight in weights], device),
        scales=_stacked(scales, device) if scales else None,
        zeros=zeros,
        input_order=None if first.input_order is None else first.input_order.to(device),
        sub_scales=_stacked(sub_scales, device) if sub_scales else None,
    )


def _stacked(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Tensors one below the other, as `torch.cat` gives them, but on a device and without a copy on the way."""
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    lengths = [len(tensor) for tensor in tensors]
    joined = torch.empty((sum(lengths), *tensors[0].shape[1:]), dtype=dtype, device=device)
    end = 0
    for tensor, length in zip(tensors, lengths, strict=True):
        joined[end : end + length] = tensor
        end += length
    return joined


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
