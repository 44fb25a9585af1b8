"""Attention over the paged cache by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.config.schema import BLOCK_SIZE
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.jit import attention
from kvarn.kernels.triton.linear import check_rows
from kvarn.kernels.triton.numbers import TRITON_TYPES, multiplied_type

ROWS = 64
"""Query heads that a program multiplies: those of one key/value head and as many queries as fit. Always the same, so
that a row's bits do not depend on the kind of step."""
KEYS = 64
SEGMENT = 256
"""As in `jit.attention`."""
PROGRAMS = 528
"""Programs that fill a large GPU: with fewer tiles each segment is computed by a program of its own."""
PARTS_BYTES = 256 * 1024 * 1024
"""Segments' sums take so much memory at most; where they would take more, each program joins its own."""


@dataclass(frozen=True, slots=True)
class TritonAttentionPlan:
    """See `kvarn.kernels.backend.AttentionPlan`. The kernels find their rows by themselves: nothing is worked out here,
    and nothing waits for the device."""

    batch: PagedBatch
    heads: HeadShape
    window: int | None

    def run(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Two kernels, and a third one where segments are computed apart."""
        key_cache, value_cache = _numbers(key_cache), _numbers(value_cache)
        queries = self._prepare(qkv, rotation, norm, key_cache, value_cache)
        out = torch.empty((len(qkv), self.heads.query * self.heads.dim), dtype=qkv.dtype, device=qkv.device)
        if len(qkv) == 0:
            return out
        heads, batch = self.heads, self.batch
        together = ROWS // (heads.query // heads.kv)
        sequences, tokens = len(batch.context_lens), len(qkv)
        tiles = tokens // together + sequences
        segments = triton.cdiv(batch.block_tables.shape[1] * BLOCK_SIZE, SEGMENT)
        size = tokens * heads.query * segments
        apart = segments > 1 and tiles * heads.kv < PROGRAMS and size * heads.dim * 4 <= PARTS_BYTES
        parts = out.new_empty((size if apart else 0, heads.dim), dtype=torch.float32)
        stats = out.new_empty((size if apart else 0, 2), dtype=torch.float32)
        programs = min(segments, triton.cdiv(PROGRAMS, tiles * heads.kv)) if apart else 1
        block = max(16, triton.next_power_of_2(heads.dim))
        attention.attend[(tiles, heads.kv, programs)](
            queries,
            key_cache,
            value_cache,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            sinks,
            out,
            parts,
            stats,
            scale,
            softcap or 0.0,
            sequences,
            batch.block_tables.stride(0),
            segments,
            QUERY_HEADS=heads.query,
            KV_HEADS=heads.kv,
            DIM=heads.dim,
            WINDOW=self.window or 0,
            HAS_SOFTCAP=softcap is not None,
            HAS_SINKS=sinks is not None,
            APART=apart,
            NUMBERS=TRITON_TYPES[_multiplied(key_cache)],
            DOT=multiplied_type(_multiplied(key_cache)),
            ROWS=ROWS,
            KEYS=KEYS,
            BLOCK=block,
            num_warps=4,
            num_stages=2,
        )
        if apart:
            attention.join[(tokens, heads.query)](
                parts,
                stats,
                batch.positions,
                batch.slot_mapping,
                sinks,
                out,
                segments,
                QUERY_HEADS=heads.query,
                DIM=heads.dim,
                WINDOW=self.window or 0,
                HAS_SINKS=sinks is not None,
                BLOCK=block,
                num_warps=1,
            )
        return out

    def _prepare(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Queries [T, H, D], ready; keys and values are in the cache."""
        heads, tokens = self.heads, self.batch.slot_mapping.shape[0]
        check_rows(qkv, (tokens, (heads.query + 2 * heads.kv) * heads.dim), qkv.dtype)
        queries = torch.empty((tokens, heads.query, heads.dim), dtype=qkv.dtype, device=qkv.device)
        if tokens:
            attention.prepare[(tokens, heads.query + 2 * heads.kv)](
                qkv,
                rotation.cos,
                rotation.sin,
                None if norm is None else norm.weight,
                self.batch.slot_mapping,
                queries,
                key_cache,
                value_cache,
                0.0 if norm is None else norm.eps,
                QKV_STRIDE=qkv.stride(0),
                QUERY_HEADS=heads.query,
                KV_HEADS=heads.kv,
                DIM=heads.dim,
                HALF=rotation.cos.shape[1],
                HAS_NORM=norm is not None,
                BLOCK=max(16, triton.next_power_of_2(heads.dim)),
                num_warps=1,
            )
        return queries


def plan_attention(batch: PagedBatch, heads: HeadShape, window: int | None) -> TritonAttentionPlan:
    """The plan of one step. Raises KernelInputError where heads do not fit the kernel."""
    if heads.query % heads.kv or heads.query // heads.kv > ROWS:
        raise KernelInputError(
            f"{heads.query} query heads cannot share {heads.kv} key/value heads evenly, {ROWS} at most"
        )
    if window is not None and window < 1:
        raise KernelInputError(f"a window of {window} tokens shows a query not even itself")
    return TritonAttentionPlan(batch, heads, window)


def _numbers(cache: torch.Tensor) -> torch.Tensor:
    """A cache of bytes holds fp8 numbers."""
    return cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache


def _multiplied(cache: torch.Tensor) -> torch.dtype:
    """The type in which a cache's numbers are multiplied: those of 8 bits are widened."""
    return cache.dtype if cache.dtype in TRITON_TYPES else torch.bfloat16
