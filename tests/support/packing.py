"""Weights and layers of the compiled kernels as tests make them, and keys and values read back from their caches."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.kv_cache import block_bytes
from kvarn.kernels.cpu.linear import CpuLinear
from kvarn.kernels.cpu.packing import pack
from kvarn.kernels.weights import Weight
from kvarn.shapes import BLOCK_SIZE, KvDtype

SCALE_BYTES = 4 * BLOCK_SIZE


def pack_linear(
    backend: _native.Backend,
    weight: Weight | torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: Activation | None = None,
) -> CpuLinear:
    """A layer on a weight, or on plain numbers."""
    return CpuLinear(backend, pack(Weight(weight) if isinstance(weight, torch.Tensor) else weight, bias, activation))


def int8_weight(out: int, in_features: int) -> Weight:
    values = torch.randint(-127, 128, (out, in_features), dtype=torch.int8)
    return Weight(values, torch.rand(out) * 0.02 + 1e-3)


def int4_weight(out: int, in_features: int, group: int = 32, has_zeros: bool = False) -> Weight:
    groups = -(-in_features // group)
    zeros = torch.randint(0, 17, (out, groups), dtype=torch.uint8) if has_zeros else None
    values = torch.randint(0, 16, (out, in_features), dtype=torch.uint8)
    return Weight(values, (torch.rand(out, groups) * 0.02 + 1e-3).half(), zeros, group)


def sub_scaled_weight(out: int, in_features: int, group: int = 128) -> Weight:
    sub_scales = torch.randint(-15, 16, (out, -(-in_features // 32)), dtype=torch.int8)
    return replace(int4_weight(out, in_features, group), sub_scales=sub_scales)


def read_kv(
    key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor, heads: HeadShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at `slots` [N] int64 (block * BLOCK_SIZE + offset) of one layer: [N, G, D] float32 each."""
    if key_cache.ndim == 4:  # torch's: [blocks, G, 16, D]
        keys, values = (each[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE].float() for each in (key_cache, value_cache))
        return keys, values
    dtypes: tuple[KvDtype, ...] = ("float32", "bfloat16", "int8")
    (dtype,) = (dtype for dtype in dtypes if key_cache.shape[1] == block_bytes(heads, dtype))
    blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    rows = torch.arange(len(slots))

    def positions(cache: torch.Tensor, *, are_keys: bool) -> torch.Tensor:
        return _decode(cache[blocks], heads, dtype, are_keys=are_keys)[rows, :, offsets]

    return positions(key_cache, are_keys=True), positions(value_cache, are_keys=False)


def _decode(blocks: torch.Tensor, heads: HeadShape, dtype: KvDtype, *, are_keys: bool) -> torch.Tensor:
    """Blocks [N, bytes] as numbers [N, G, 16, D]."""
    count, padded = len(blocks), -(-heads.dim // 16) * 16
    parts = blocks.reshape(count, heads.kv, -1)
    if dtype == "bfloat16":
        halves = parts.view(torch.bfloat16).float()
        if are_keys:
            numbers = halves.view(count, heads.kv, padded // 2, BLOCK_SIZE, 2).transpose(2, 3)
        else:
            numbers = halves.view(count, heads.kv, BLOCK_SIZE // 2, padded, 2).transpose(3, 4)
        return numbers.reshape(count, heads.kv, BLOCK_SIZE, padded)[..., : heads.dim]
    head_bytes = SCALE_BYTES if dtype == "int8" else 0
    plain = parts[..., head_bytes:].view(torch.int8 if dtype == "int8" else torch.float32).float()
    shape = (padded, BLOCK_SIZE) if are_keys else (BLOCK_SIZE, padded)
    numbers = plain.reshape(count, heads.kv, *shape)
    numbers = (numbers.transpose(2, 3) if are_keys else numbers)[..., : heads.dim]
    if dtype == "int8":
        numbers = numbers * parts[..., :SCALE_BYTES].contiguous().view(torch.float32)[..., None]
    return numbers
