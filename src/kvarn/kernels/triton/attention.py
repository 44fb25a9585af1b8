"""Attention over the paged cache by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.jit import attention, cascade
from kvarn.kernels.triton.linear import check_rows
from kvarn.kernels.triton.numbers import TRITON_TYPES, multiplied_type
from kvarn.kernels.triton.segments import Segments, num_segments

ROWS = 64
"""Query heads that a program multiplies: those of one key/value head and as many queries as fit. Always the same, so
that a row's bits do not depend on the kind of step."""
KEYS = 64
PROGRAMS = 528
"""Programs that fill a large GPU: with fewer tiles each segment is computed by a program of its own."""
COMPARED = 64
"""Sequences whose blocks are compared at a time."""


@dataclass(frozen=True, slots=True)
class TritonAttentionPlan:
    """See `kvarn.kernels.backend.AttentionPlan`. The kernels find their rows by themselves: nothing waits for the
    device."""

    batch: PagedBatch
    heads: HeadShape
    window: int | None
    members: torch.Tensor | None = None
    """See `jit.cascade.find_shared`; None: each sequence reads its own blocks."""

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
        numbers = _multiplied(key_cache)
        same = {
            "QUERY_HEADS": heads.query,
            "KV_HEADS": heads.kv,
            "DIM": heads.dim,
            "HAS_SOFTCAP": softcap is not None,
            "NUMBERS": TRITON_TYPES[numbers],
            "DOT": multiplied_type(numbers),
            "ROWS": ROWS,
            "KEYS": KEYS,
            "BLOCK": max(16, triton.next_power_of_2(heads.dim)),
            "num_warps": 4,
            "num_stages": 2,
        }
        fit = len(qkv) <= Segments.fitting(batch, heads.query, heads.dim)
        together, sequences = _together(heads), len(batch.context_lens)
        tables = batch.block_tables, batch.context_lens
        sizes = sequences, batch.block_tables.stride(0), num_segments(batch)
        if self.members is not None and fit:
            segments = Segments.room(batch, len(qkv), heads.query, heads.dim)
            sums = segments.parts, segments.stats, scale, softcap or 0.0
            cascade.attend[(sequences, heads.kv, num_segments(batch))](
                queries, key_cache, value_cache, *tables, self.members, *sums, *sizes,
                TOGETHER=together, SEATS=self.members.shape[2], **same,
            )  # fmt: skip
            segments.join(batch, out, sinks)
            return out
        tiles = len(qkv) // together + sequences
        programs = programs_of(tiles * heads.kv, num_segments(batch)) if fit else 1
        segments = Segments.room(batch, len(qkv), heads.query, heads.dim) if programs > 1 else Segments.none(out.device)
        sums = segments.parts, segments.stats, scale, softcap or 0.0
        attention.attend[(tiles, heads.kv, programs)](
            queries, key_cache, value_cache, *tables, batch.query_starts, sinks, out, *sums, *sizes,
            WINDOW=self.window or 0, HAS_SINKS=sinks is not None, APART=programs > 1, **same,
        )  # fmt: skip
        if programs > 1:
            segments.join(batch, out, sinks, self.window or 0)
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
    if batch.shares_prefix and len(batch.positions) != len(batch.context_lens):
        raise KernelInputError("a prefix is shared where each sequence has one query")
    members = _find_shared(batch, heads) if batch.shares_prefix and window is None else None
    return TritonAttentionPlan(batch, heads, window, members)


def programs_of(tiles: int, segments: int) -> int:
    """Programs that share a tile's segments: one where there are tiles enough."""
    return min(segments, triton.cdiv(PROGRAMS, tiles)) if tiles < PROGRAMS else 1


def _together(heads: HeadShape) -> int:
    """Queries of a tile."""
    return ROWS // (heads.query // heads.kv)


def _find_shared(batch: PagedBatch, heads: HeadShape) -> torch.Tensor:
    """Who reads which segment with whom: see `jit.cascade.find_shared`."""
    sequences, together = len(batch.context_lens), _together(heads)
    seats = triton.next_power_of_2(together)
    members = torch.empty((num_segments(batch), sequences, seats), dtype=torch.int32, device=batch.block_tables.device)
    cascade.find_shared[(sequences, num_segments(batch))](
        batch.block_tables,
        batch.context_lens,
        members,
        sequences,
        batch.block_tables.stride(0),
        TOGETHER=together,
        SEATS=seats,
        BLOCK=COMPARED,
    )
    return members


def _numbers(cache: torch.Tensor) -> torch.Tensor:
    """A cache of bytes holds fp8 numbers."""
    return cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache


def _multiplied(cache: torch.Tensor) -> torch.dtype:
    """The type in which a cache's numbers are multiplied: those of 8 bits are widened."""
    return cache.dtype if cache.dtype in TRITON_TYPES else torch.bfloat16
