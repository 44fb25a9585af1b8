"""The key/value cache of the compiled kernels: blocks in the layouts of csrc/attention/attention.h."""

from __future__ import annotations

from typing import Literal

import torch

from kvarn.kernels.batch import KVCache
from kvarn.kernels.memory import zeros_on_demand

KvDtype = Literal["float32", "bfloat16", "int8"]
"""How keys and values are kept. int8 has one float scale for each position and head."""

BLOCK = 16
MAX_HEAD_DIM = 256
_NATIVE_TYPE: dict[KvDtype, int] = {"float32": 0, "bfloat16": 1, "int8": 2}
_SCALE_BYTES = 4 * BLOCK


class KvShapeError(ValueError):
    """A cache, or heads, that the kernels cannot read."""


def block_bytes(kv_heads: int, head_dim: int, kv_dtype: KvDtype) -> int:
    """Bytes of one block of 16 positions in one layer: its keys, or its values."""
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise KvShapeError(f"heads of {head_dim} numbers: the kernels read even ones up to {MAX_HEAD_DIM}")
    numbers = BLOCK * _padded(head_dim)
    match kv_dtype:
        case "float32":
            return kv_heads * 4 * numbers
        case "bfloat16":
            return kv_heads * 2 * numbers
        case "int8":
            return kv_heads * (_SCALE_BYTES + numbers)


def new_kv_cache(num_layers: int, num_blocks: int, kv_heads: int, head_dim: int, kv_dtype: KvDtype) -> KVCache:
    """An empty cache: for each layer keys and values, uint8 [num_blocks, bytes], whose memory comes when it is used."""
    shape = (num_blocks, block_bytes(kv_heads, head_dim, kv_dtype))
    keys = tuple(zeros_on_demand(shape, torch.uint8) for _ in range(num_layers))
    return KVCache(keys, tuple(zeros_on_demand(shape, torch.uint8) for _ in range(num_layers)))


def kv_dtype_of(cache: torch.Tensor, kv_heads: int, head_dim: int) -> KvDtype:
    """What the blocks of a layer hold, told by their size."""
    for dtype in _NATIVE_TYPE:
        if cache.shape[1] == block_bytes(kv_heads, head_dim, dtype):
            return dtype
    raise KvShapeError(f"blocks of {cache.shape[1]} bytes are not of {kv_heads} heads of {head_dim} numbers")


def native_type(cache: torch.Tensor, kv_heads: int, head_dim: int) -> int:
    """The number by which the kernels know the type of this cache."""
    return _NATIVE_TYPE[kv_dtype_of(cache, kv_heads, head_dim)]


def read_kv(
    key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor, kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at `slots` [N] int64 (block * 16 + offset) of one layer: [N, G, D] float32 each."""
    dtype = kv_dtype_of(key_cache, kv_heads, head_dim)
    blocks, offsets = slots // BLOCK, slots % BLOCK
    rows = torch.arange(len(slots))

    def positions(cache: torch.Tensor, *, are_keys: bool) -> torch.Tensor:
        return _decode(cache[blocks], kv_heads, head_dim, dtype, are_keys=are_keys)[rows, :, offsets]

    return positions(key_cache, are_keys=True), positions(value_cache, are_keys=False)


def _padded(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


def _decode(blocks: torch.Tensor, kv_heads: int, dim: int, dtype: KvDtype, *, are_keys: bool) -> torch.Tensor:
    """Blocks [N, bytes] as numbers [N, G, 16, D]."""
    heads = blocks.reshape(len(blocks), kv_heads, -1)
    padded = _padded(dim)
    if dtype == "int8":
        scales = heads[..., :_SCALE_BYTES].contiguous().view(torch.float32)
        numbers = heads[..., _SCALE_BYTES:].view(torch.int8).float().unflatten(-1, _plain(are_keys, padded))
        return (numbers.transpose(-1, -2) if are_keys else numbers)[..., :dim] * scales[..., None]
    if dtype == "float32":
        numbers = heads.view(torch.float32).unflatten(-1, _plain(are_keys, padded))
        return (numbers.transpose(-1, -2) if are_keys else numbers)[..., :dim]
    halves = heads.view(torch.bfloat16).float()
    if are_keys:
        return halves.unflatten(-1, (padded // 2, BLOCK, 2)).transpose(-3, -2).flatten(-2)[..., :dim]
    return halves.unflatten(-1, (BLOCK // 2, padded, 2)).transpose(-1, -2).flatten(-3, -2)[..., :dim]


def _plain(are_keys: bool, padded: int) -> tuple[int, int]:
    return (padded, BLOCK) if are_keys else (BLOCK, padded)
