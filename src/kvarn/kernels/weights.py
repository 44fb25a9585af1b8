"""Weights as a checkpoint gives them to the kernels: plain, or quantised."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """weight[n, k] = values[n, k] * scales[n]; multiplied with activations quantised to int8, a scale a token."""

    values: torch.Tensor
    """[out, in] int8, -127 to 127."""
    scales: torch.Tensor
    """[out] float32."""


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """weight[n, k] = (values[n, k] - zeros[n, g]) * scales[n, g], where g = k // group."""

    values: torch.Tensor
    """[out, in] uint8, 0 to 15."""
    scales: torch.Tensor
    """[out, in / group] float16."""
    zeros: torch.Tensor | None
    """[out, in / group] uint8, 0 to 15 (16 where a format counts from one); None: 8 everywhere."""
    group: int
    """Inputs that share a scale: a multiple of 32; the last group may be shorter."""


Weight = torch.Tensor | Int8Weight | Int4Weight
"""[out, in]: a float tensor as it is, or quantised."""


def weight_shape(weight: Weight) -> tuple[int, int]:
    """(out, in)."""
    values = weight if isinstance(weight, torch.Tensor) else weight.values
    out_features, in_features = values.shape
    return out_features, in_features


def dequantise(weight: Weight) -> torch.Tensor:
    """[out, in] float32: the numbers a quantised weight stands for."""
    match weight:
        case Int8Weight():
            return weight.values.float() * weight.scales[:, None]
        case Int4Weight():
            zeros = 8.0 if weight.zeros is None else _spread(weight.zeros.float(), weight)
            return (weight.values.float() - zeros) * _spread(weight.scales.float(), weight)
        case _:
            return weight.float()


def _spread(of_groups: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    return of_groups.repeat_interleave(weight.group, 1)[:, : weight.values.shape[1]]
