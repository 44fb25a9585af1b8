"""The key/value cache of the compiled kernels: blocks in the layouts of csrc/attention/attention.h."""

from __future__ import annotations

import torch

from kvarn.kernels.batch import HeadShape, KVCache
from kvarn.kernels.device.memory import zeros_on_demand
from kvarn.kernels.errors import KernelInputError, UnsupportedByBackendError
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.cache import kv_bytes_per_head

MAX_HEAD_DIM = 256
NATIVE_TYPE: dict[KvDtype, int] = {"float32": 0, "bfloat16": 1, "int8": 2}
"""Numbers of the types of caches in the kernels."""


def block_bytes(heads: HeadShape, dtype: KvDtype) -> int:
    """Bytes of one block in one layer: its keys, or its values."""
    if heads.dim % 2 or not 2 <= heads.dim <= MAX_HEAD_DIM:
        raise KernelInputError(f"heads of {heads.dim} numbers: the kernels read even ones up to {MAX_HEAD_DIM}")
    return heads.kv * BLOCK_SIZE * kv_bytes_per_head(heads.dim, dtype)


def new_kv_cache(num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
    """An empty cache: for each layer keys and values, uint8 [num_blocks, bytes], whose memory comes when it is used."""
    if dtype not in NATIVE_TYPE:
        raise UnsupportedByBackendError(f"an {dtype} KV cache needs a GPU: set kv_cache_dtype to int8")
    shape = (num_blocks, block_bytes(heads, dtype))
    keys, values = (tuple(zeros_on_demand(shape, torch.uint8) for _ in range(num_layers)) for _ in range(2))
    return KVCache(keys, values)


def native_type(key_cache: torch.Tensor, value_cache: torch.Tensor, heads: HeadShape) -> int:
    """The number by which the kernels know the type of these caches, which follows from the size of their blocks."""
    if key_cache.shape != value_cache.shape:
        raise KernelInputError(f"key blocks {tuple(key_cache.shape)}, but value blocks {tuple(value_cache.shape)}")
    if any(cache.dtype != torch.uint8 or not cache.is_contiguous() for cache in (key_cache, value_cache)):
        raise KernelInputError("key and value blocks must be bytes, one after another")
    for dtype, number in NATIVE_TYPE.items():
        if key_cache.shape[1] == block_bytes(heads, dtype):
            return number
    raise KernelInputError(f"blocks of {key_cache.shape[1]} bytes do not hold {heads}")
