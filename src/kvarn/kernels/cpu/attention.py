"""Attention straight from the block table, in the compiled kernels; for encoders over a cache of one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation, whole_texts
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.kv_cache import native_type, new_kv_cache
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm


@dataclass(frozen=True, slots=True)
class CpuAttentionMetadata:
    backend: _native.Backend
    native: _native.AttentionMetadata
    batch: PagedBatch
    """Kept alive: the native plan refers to its tensors."""
    heads: HeadShape

    def run(
        self, qkv: torch.Tensor, rotation: Rotation, layer: AttentionLayer, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """One compiled call: [T, (H + 2 G) D] float32 to [T, H D] float32.

        A token's result depends on its own sequence alone, to the last bit.
        """
        heads, kv_type = self.heads, native_type(keys, values, self.heads)
        norm, sinks = layer.norm, layer.sinks
        self.check(len(qkv), rotation, len(keys))
        self._check_heads(qkv, norm)
        if sinks is not None and (sinks.shape != (heads.query,) or sinks.dtype != torch.float32):
            raise KernelInputError(f"sinks must be float32 [{heads.query}], not {sinks.dtype} {tuple(sinks.shape)}")
        out = torch.empty((len(qkv), heads.query * heads.dim), dtype=torch.float32)
        self.backend.attention(
            self.native,
            qkv=qkv.data_ptr(),
            qkv_stride=qkv.stride(0),
            query_heads=heads.query,
            kv_heads=heads.kv,
            dim=heads.dim,
            kv_type=kv_type,
            cos=rotation.cos.data_ptr(),
            sin=rotation.sin.data_ptr(),
            half_rotated=rotation.cos.shape[1],
            norm=norm.weight.data_ptr() if norm else 0,
            eps=norm.eps if norm else 0.0,
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            scale=layer.scale,
            softcap=layer.softcap or 0.0,
            out=out.data_ptr(),
            out_stride=out.stride(0),
            sinks=0 if sinks is None else sinks.data_ptr(),
        )
        return out

    def check(self, rows: int, rotation: Rotation, num_blocks: int) -> None:
        """Raise KernelInputError unless so many rows are the step's tokens, with their angles, and a cache of so many
        blocks has all that the step uses."""
        tokens, heads = self.batch.slot_mapping.shape[0], self.heads
        cos, sin = rotation.cos, rotation.sin
        if rows != tokens:
            raise KernelInputError(f"{rows} rows are not the {tokens} tokens of the step")
        if cos.shape != sin.shape or cos.shape[0] != tokens or 2 * cos.shape[1] > heads.dim:
            raise KernelInputError(
                f"angles {tuple(cos.shape)}, {tuple(sin.shape)} do not fit {tokens} tokens of {heads}"
            )
        if any(each.dtype != torch.float32 or not each.is_contiguous() for each in (cos, sin)):
            raise KernelInputError("angles must be float32, contiguous")
        if self.native.num_blocks > num_blocks:
            last = self.native.num_blocks - 1
            raise KernelInputError(f"the step uses block {last} of a cache of {num_blocks} blocks")

    def _check_heads(self, qkv: torch.Tensor, norm: Norm | None) -> None:
        heads = self.heads
        if qkv.shape[1:] != ((heads.query + 2 * heads.kv) * heads.dim,) or qkv.stride(1) != 1:
            raise KernelInputError(f"qkv {tuple(qkv.shape)} is not of {heads}")
        if qkv.dtype != torch.float32:
            raise KernelInputError("queries, keys and values must be float32")
        if norm is not None:
            _check_head_norm(norm, heads)


def _check_head_norm(norm: Norm, heads: HeadShape) -> None:
    weight = norm.weight
    if weight.shape != (heads.query + heads.kv, heads.dim):
        raise KernelInputError(f"norm weights {tuple(weight.shape)} do not fit {heads}")
    if weight.dtype != torch.float32 or not weight.is_contiguous():
        raise KernelInputError("norm weights must be float32, contiguous")


def native_head_norm(norm: Norm | None, heads: HeadShape) -> _native.NormWeight:
    """A norm of query and key heads, for compiled code; it must outlive that."""
    if norm is None:
        return _native.NormWeight()
    _check_head_norm(norm, heads)
    return _native.NormWeight(norm.weight.data_ptr(), norm.eps)


def plan_attention(
    backend: _native.Backend, batch: PagedBatch, heads: HeadShape, window: int | None = None, *, causal: bool = True
) -> CpuAttentionMetadata:
    """The plan of one step. `window`: tokens a query sees, itself included; None sees all before it.

    Where it is not causal, a query also sees as many tokens after it, as far as its sequence's context goes.

    Raises KernelInputError where the batch does not fit together.
    """
    (sequences,), (tokens,) = batch.context_lens.shape, batch.slot_mapping.shape
    try:
        native = _native.AttentionMetadata(
            query_starts=_address(batch.query_starts, torch.int32),
            context_lens=_address(batch.context_lens, torch.int32),
            block_tables=_address(batch.block_tables, torch.int32),
            table_stride=batch.block_tables.stride(0),
            table_blocks=batch.block_tables.shape[1],
            slots=_address(batch.slot_mapping, torch.int64),
            sequences=sequences,
            tokens=tokens,
            window=window or 0,
            causal=causal,
            query_heads=heads.query,
            kv_heads=heads.kv,
        )
    except ValueError as error:
        raise KernelInputError(str(error)) from error
    return CpuAttentionMetadata(backend, native, batch, heads)


def _address(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    if tensor.dtype != dtype or (tensor.numel() and tensor.stride(-1) != 1):
        raise KernelInputError(f"expected {dtype} side by side, not {tensor.dtype} with strides {tensor.stride()}")
    return tensor.data_ptr()


@dataclass(frozen=True, slots=True)
class CpuBidirectionalMetadata:
    """See `BidirectionalMetadata`. Each layer writes its keys and values over the last one's."""

    attention: CpuAttentionMetadata
    keys: torch.Tensor
    values: torch.Tensor

    def run(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """One compiled call. A text's result depends on its own tokens alone, to the last bit."""
        if rotation is None:
            nothing = torch.empty((len(qkv), 0))
            rotation = Rotation(nothing, nothing)
        layer = AttentionLayer(self.attention.heads.dim**-0.5)
        return self.attention.run(qkv, rotation, layer, self.keys, self.values)


def plan_bidirectional(
    backend: _native.Backend, lengths: torch.Tensor, heads: HeadShape, window: int | None = None
) -> CpuBidirectionalMetadata:
    """See `Operations.plan_bidirectional`. Raises KernelInputError where the kernels cannot read such heads."""
    batch, num_blocks = whole_texts(lengths)
    cache = new_kv_cache(1, num_blocks, heads, "float32")
    plan = plan_attention(backend, batch, heads, window, causal=False)
    return CpuBidirectionalMetadata(plan, cache.keys[0], cache.values[0])
