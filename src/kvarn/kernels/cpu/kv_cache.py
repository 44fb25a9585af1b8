"""The key/value cache of the compiled kernels: blocks in the layouts of csrc/attention/attention.h."""

from __future__ import annotations

import torch

from kvarn.kernels.batch import HeadShape, KVCache, KvDtype
from kvarn.kernels.errors import KernelError
from kvarn.kernels.memory import zeros_on_demand

BLOCK = 16
"""Positions of a block."""

MAX_HEAD_DIM = 256
_NATIVE_TYPE: dict[KvDtype, int] = {"float32": 0, "bfloat16": 1, "int8": 2}
_SCALE_BYTES = 4 * BLOCK


class KvShapeError(KernelError):
    """A cache, or heads, that the kernels cannot read."""


def block_bytes(heads: HeadShape, dtype: KvDtype) -> int:
    """Bytes of one block of 16 positions in one layer: its keys, or its values."""
    if heads.dim % 2 or not 2 <= heads.dim <= MAX_HEAD_DIM:
        raise KvShapeError(f"heads of {heads.dim} numbers: the kernels read even ones up to {MAX_HEAD_DIM}")
    numbers = BLOCK * _padded(heads.dim)
    match dtype:
        case "float32":
            return heads.kv * 4 * numbers
        case "bfloat16":
            return heads.kv * 2 * numbers
        case "int8":
            return heads.kv * (_SCALE_BYTES + numbers)


def new_kv_cache(num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
    """An empty cache: for each layer keys and values, uint8 [num_blocks, bytes], whose memory comes when it is used."""
    shape = (num_blocks, block_bytes(heads, dtype))
    keys = tuple(zeros_on_demand(shape, torch.uint8) for _ in range(num_layers))
    return KVCache(keys, tuple(zeros_on_demand(shape, torch.uint8) for _ in range(num_layers)))


def native_type(key_cache: torch.Tensor, value_cache: torch.Tensor, heads: HeadShape) -> int:
    """The number by which the kernels know the type of these caches."""
    if key_cache.shape != value_cache.shape:
        raise KvShapeError(f"key blocks {tuple(key_cache.shape)}, but value blocks {tuple(value_cache.shape)}")
    if any(cache.dtype != torch.uint8 or not cache.is_contiguous() for cache in (key_cache, value_cache)):
        raise KvShapeError("key and value blocks must be bytes, one after another")
    return _NATIVE_TYPE[_kv_dtype_of(key_cache, heads)]


def read_kv(
    key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor, heads: HeadShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at `slots` [N] int64 (block * 16 + offset) of one layer: [N, G, D] float32 each."""
    dtype = _kv_dtype_of(key_cache, heads)
    blocks, offsets = slots // BLOCK, slots % BLOCK
    rows = torch.arange(len(slots))

    def positions(cache: torch.Tensor, *, are_keys: bool) -> torch.Tensor:
        return _decode(cache[blocks], heads, dtype, are_keys=are_keys)[rows, :, offsets]

    return positions(key_cache, are_keys=True), positions(value_cache, are_keys=False)


def _kv_dtype_of(cache: torch.Tensor, heads: HeadShape) -> KvDtype:
    """What the blocks hold, told by their size."""
    for dtype in _NATIVE_TYPE:
        if cache.shape[1] == block_bytes(heads, dtype):
            return dtype
    raise KvShapeError(f"blocks of {cache.shape[1]} bytes do not hold {heads}")


def _padded(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


def _decode(blocks: torch.Tensor, heads: HeadShape, dtype: KvDtype, *, are_keys: bool) -> torch.Tensor:
    """Blocks [N, bytes] as numbers [N, G, 16, D]."""
    count, padded = len(blocks), _padded(heads.dim)
    parts = blocks.reshape(count, heads.kv, -1)
    if dtype == "bfloat16":
        halves = parts.view(torch.bfloat16).float()
        if are_keys:
            numbers = halves.view(count, heads.kv, padded // 2, BLOCK, 2).transpose(2, 3)
        else:
            numbers = halves.view(count, heads.kv, BLOCK // 2, padded, 2).transpose(3, 4)
        return numbers.reshape(count, heads.kv, BLOCK, padded)[..., : heads.dim]
    head_bytes = _SCALE_BYTES if dtype == "int8" else 0
    plain = parts[..., head_bytes:].view(torch.int8 if dtype == "int8" else torch.float32).float()
    shape = (padded, BLOCK) if are_keys else (BLOCK, padded)
    numbers = plain.reshape(count, heads.kv, *shape)
    numbers = (numbers.transpose(2, 3) if are_keys else numbers)[..., : heads.dim]
    if dtype == "int8":
        numbers = numbers * parts[..., :_SCALE_BYTES].contiguous().view(torch.float32)[..., None]
    return numbers
