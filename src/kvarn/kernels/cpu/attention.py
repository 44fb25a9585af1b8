"""Attention straight from the block table, in the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.kv_cache import BLOCK, KvShapeError, native_type
from kvarn.kernels.linear import Norm


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    """Who reads which keys in one step, for the layers that share a window."""

    native: _native.AttentionPlan
    batch: PagedBatch
    """Kept alive: the native plan refers to its tensors."""


def plan_attention(batch: PagedBatch, window: int | None = None, *, causal: bool = True) -> CpuAttentionPlan:
    """The plan of one step. `window`: tokens a query sees, itself included; None sees all before it.

    Where it is not causal, a query also sees the tokens after it, as far as its sequence's context goes.

    Raises KvShapeError where the batch does not fit together.
    """
    if batch.block_size != BLOCK:
        raise KvShapeError(f"blocks of {batch.block_size} tokens: the kernels read blocks of {BLOCK}")
    if window is not None and window < 1:
        raise KvShapeError(f"a window of {window} tokens shows a query not even itself")
    (sequences,), (tokens,) = batch.context_lens.shape, batch.slot_mapping.shape
    if batch.query_starts.shape != (sequences + 1,) or len(batch.block_tables) != sequences:
        raise KvShapeError(f"query starts or block tables are not those of {sequences} sequences")
    try:
        native = _native.AttentionPlan(
            _int32(batch.query_starts),
            _int32(batch.context_lens),
            _int32(batch.block_tables),
            batch.block_tables.stride(0),
            batch.block_tables.shape[1],
            _int64(batch.slot_mapping),
            sequences,
            tokens,
            window or 0,
            causal,
        )
    except ValueError as error:
        raise KvShapeError(str(error)) from error
    return CpuAttentionPlan(native, batch)


def attention(
    backend: _native.Backend,
    qkv: torch.Tensor,
    heads: HeadShape,
    rotation: Rotation,
    norm: Norm | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: CpuAttentionPlan,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Write this step's keys and values into one layer's cache, then answer its queries: [T, H D] float32.

    qkv [T, (H + 2 G) D] float32: query, key and value heads. Queries and keys are normed (where the model has it) and
    rotated; scores are multiplied by `scale` and, with a softcap, become softcap * tanh(score / softcap). A token's
    result depends on its own sequence alone, to the last bit.
    """
    _check(qkv, heads, rotation, norm, plan)
    kv_type = native_type(key_cache, value_cache, heads)
    if plan.native.num_blocks > len(key_cache):
        raise KvShapeError(f"the step uses block {plan.native.num_blocks - 1} of a cache of {len(key_cache)} blocks")
    out = torch.empty((len(qkv), heads.query * heads.dim), dtype=torch.float32)
    backend.attention(
        plan.native,
        qkv.data_ptr(),
        qkv.stride(0),
        heads.query,
        heads.kv,
        heads.dim,
        kv_type,
        rotation.cos.data_ptr(),
        rotation.sin.data_ptr(),
        rotation.cos.shape[1],
        norm.weight.data_ptr() if norm else 0,
        norm.eps if norm else 0.0,
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        scale,
        softcap or 0.0,
        out.data_ptr(),
        out.stride(0),
    )
    return out


def _check(qkv: torch.Tensor, heads: HeadShape, rotation: Rotation, norm: Norm | None, plan: CpuAttentionPlan) -> None:
    tokens = plan.batch.slot_mapping.shape[0]
    cos, sin = rotation.cos, rotation.sin
    if heads.query % heads.kv:
        raise KvShapeError(f"{heads.query} query heads cannot share {heads.kv} key/value heads evenly")
    if qkv.shape != (tokens, (heads.query + 2 * heads.kv) * heads.dim) or qkv.stride(1) != 1:
        raise KvShapeError(f"qkv {tuple(qkv.shape)} is not {tokens} tokens of {heads}")
    if cos.shape != sin.shape or cos.shape[0] != tokens or 2 * cos.shape[1] > heads.dim:
        raise KvShapeError(f"angles {tuple(cos.shape)}, {tuple(sin.shape)} do not fit {tokens} tokens of {heads}")
    if norm and norm.weight.shape != (heads.query + heads.kv, heads.dim):
        raise KvShapeError(f"norm weights {tuple(norm.weight.shape)} do not fit {heads}")
    whole = (cos, sin, norm.weight) if norm else (cos, sin)
    if qkv.dtype != torch.float32 or any(t.dtype != torch.float32 or not t.is_contiguous() for t in whole):
        raise KvShapeError("queries, keys, values, angles and norm weights must be float32, all but the first whole")


def _int32(tensor: torch.Tensor) -> int:
    return _address(tensor, torch.int32)


def _int64(tensor: torch.Tensor) -> int:
    return _address(tensor, torch.int64)


def _address(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    if tensor.dtype != dtype or (tensor.numel() and tensor.stride(-1) != 1):
        raise KvShapeError(f"expected {dtype} side by side, not {tensor.dtype} with strides {tensor.stride()}")
    return tensor.data_ptr()
