"""The paged KV cache: the size of its blocks, the types of its numbers."""

from __future__ import annotations

from typing import Literal

BLOCK_SIZE = 16
"""Tokens in one block. Fixed: block hashes are names shared between processes."""

KvDtype = Literal["float32", "bfloat16", "int8", "fp8"]
"""Type of cached keys and values. int8 has a float32 scale for each token and head."""


def kv_bytes_per_head(head_dim: int, dtype: KvDtype) -> int:
    """Bytes of one token's key, or value, in one head.

    The compiled kernels fill a head up to a multiple of 16 numbers; torch's take no more.
    """
    held_dim = -(-head_dim // 16) * 16
    return {"float32": 4 * held_dim, "bfloat16": 2 * held_dim, "int8": held_dim + 4, "fp8": held_dim}[dtype]
