"""Attention over the paged cache by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.jit import attention, cascade
from kvarn.kernels.triton.launch import launch_options
from kvarn.kernels.triton.linear import check_rows
from kvarn.kernels.triton.numbers import TRITON_TYPES, multiplied_type
from kvarn.kernels.triton.segments import SplitPlan, num_parts, num_segments, split_length

ROWS = 64
"""Query heads that a program multiplies: those of one key/value head and as many queries as fit."""
FEW_ROWS = 16
"""The same where each sequence has one query. It changes no bit."""
FEW_FROM = 64
"""Numbers of a head, rounded up to a power of two, from which there may be few rows: values are the left operand then,
and smaller heads would not fill its 64 rows, so that other instructions would multiply them."""
KEYS = 64
WARPS = 4
STAGES = 2
COMPARED = 64
"""Sequences whose blocks are compared at a time."""


@dataclass(frozen=True, slots=True)
class TritonAttentionPlan:
    """See `kvarn.kernels.operations.AttentionPlan`. The kernels find their rows by themselves: nothing waits for the
    device."""

    batch: PagedBatch
    heads: HeadShape
    window: int | None
    splits: SplitPlan | None
    """Who computes which segments; None: each tile is computed by one program."""
    members: torch.Tensor | None
    """See `jit.cascade.find_shared`; None: each sequence reads its own blocks."""
    rows: int
    """Of a program."""

    @property
    def together(self) -> int:
        """Queries of a tile."""
        return self.rows // (self.heads.query // self.heads.kv)

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
        kind = _multiplied(key_cache)
        same = {
            "QUERY_HEADS": heads.query,
            "KV_HEADS": heads.kv,
            "DIM": heads.dim,
            "HAS_SOFTCAP": softcap is not None,
            "NUMBERS": TRITON_TYPES[kind],
            "DOT": multiplied_type(kind),
            "KEYS": KEYS,
            "BLOCK": head_block(heads),
            "num_warps": WARPS,
            "num_stages": STAGES,
            **launch_options(len(qkv)),
        }
        sequences, splits = len(batch.context_lens), self.splits
        numbers = scale, softcap or 0.0, sequences, batch.block_tables.stride(0)
        if splits is None:
            tiles = len(qkv) // self.together + sequences
            attention.attend[(tiles * heads.kv,)](
                queries, key_cache, value_cache, batch.block_tables, batch.context_lens, batch.query_starts, None, None,
                sinks, out, None, None, *numbers,
                WINDOW=self.window or 0, HAS_SINKS=sinks is not None, APART=False, ROWS=self.rows, **same,
            )  # fmt: skip
            return out
        sums = splits.memory(heads.query, heads.dim)
        if self.members is None:
            attention.attend[(splits.launched * heads.kv,)](
                queries, key_cache, value_cache, batch.block_tables, batch.context_lens, batch.query_starts,
                splits.programs, splits.pieces, sinks, out, *sums, *numbers,
                WINDOW=self.window or 0, HAS_SINKS=sinks is not None, APART=True, ROWS=self.rows, **same,
            )  # fmt: skip
        else:
            cascade.attend[(sequences, heads.kv, num_segments(batch))](
                queries, key_cache, value_cache, batch.block_tables, batch.context_lens, splits.pieces, self.members,
                *sums, *numbers, TOGETHER=self.together, SEATS=self.members.shape[2], ROWS=self.rows, **same,
            )  # fmt: skip
        splits.join(*sums, out, sinks, group=heads.query // heads.kv)
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
                BLOCK=head_block(heads),
                num_warps=1,
                **launch_options(tokens),
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
    sequences, group, bytes_each = len(batch.context_lens), heads.query // heads.kv, heads.query * heads.dim * 4
    most = num_segments(batch, window or 0)
    shared = batch.shares_prefix and window is None and len(batch.positions) * most <= num_parts(bytes_each)
    few = len(batch.positions) == sequences and group <= FEW_ROWS and head_block(heads) >= FEW_FROM and not shared
    rows = FEW_ROWS if few else ROWS
    tiles = len(batch.positions) // (rows // group) + sequences
    splits = None
    if shared or most > split_length(tiles * heads.kv):
        splits = SplitPlan.of(batch, rows // group, heads.kv, bytes_each, window=window or 0, always=shared)
    members = _find_shared(batch, rows // group) if shared else None
    return TritonAttentionPlan(batch, heads, window, splits, members, rows)


def head_block(heads: HeadShape) -> int:
    """Numbers of a head as kernels hold them: a power of two."""
    return max(16, int(triton.next_power_of_2(heads.dim)))


def _find_shared(batch: PagedBatch, together: int) -> torch.Tensor:
    """Who reads which segment with whom: see `jit.cascade.find_shared`."""
    sequences = len(batch.context_lens)
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
    """The type in which a cache's numbers are multiplied: those of 8 bits are converted."""
    return cache.dtype if cache.dtype in TRITON_TYPES else torch.bfloat16
