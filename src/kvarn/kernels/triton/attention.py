"""Attention over the paged cache by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.checks import check_rows
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.jit import attention, cascade
from kvarn.kernels.triton.launch import TRITON_TYPES, launch_options, multiplied_type
from kvarn.kernels.triton.segments import SplitPlan, num_parts, num_segments, split_length

ROWS = 64
"""Query heads that a program multiplies: those of one key/value head and as many queries as fit."""
FEW_ROWS = 16
"""The same where each sequence has one query. It changes no bit. With keys and values of 8 bits there are 64 all the
same: as the right operand of products they are converted once, many at a time, on their way to shared memory."""
FEW_FROM = 64
"""Numbers of a head, rounded up to a power of two, from which there may be few rows: values are the left operand then,
and smaller heads would not fill its 64 rows, so that other instructions would multiply them."""
KEYS = 64
WARPS = 4
STAGES = 3
"""Steps of keys that are multiplied or on their way."""
KEPT_AHEAD = 128
"""Heads of more numbers have room for one less."""
HEADS_TOGETHER = 8
"""Heads of a token that a program brings into the cache."""
COMPARED = 64
"""Sequences whose blocks are compared at a time."""


@dataclass(frozen=True, slots=True)
class TritonAttentionMetadata:
    """See `kvarn.kernels.attention.AttentionMetadata`. The kernels find their rows by themselves: nothing waits for the
    device."""

    batch: PagedBatch
    heads: HeadShape
    window: int | None
    splits: SplitPlan | None
    """The division of segments among programs; None: each tile is computed by one program."""
    members: torch.Tensor | None
    """See `jit.cascade.find_shared`; None: each sequence reads its own blocks."""
    rows: int
    """Rows of a program."""

    @property
    def together(self) -> int:
        return self.rows // (self.heads.query // self.heads.kv)

    def run(
        self, qkv: torch.Tensor, rotation: Rotation, layer: AttentionLayer, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Two kernels, and a third one where segments are computed apart."""
        keys, values, sinks = _numbers(keys), _numbers(values), layer.sinks
        queries = self._prepare(qkv, rotation, layer.norm, keys, values)
        out = torch.empty((len(qkv), self.heads.query * self.heads.dim), dtype=qkv.dtype, device=qkv.device)
        if len(qkv) == 0:
            return out
        heads, batch, splits = self.heads, self.batch, self.splits
        sequences, kind = len(batch.context_lens), _multiplied(keys)
        same = {
            "queries": queries,
            "keys": keys,
            "values": values,
            "tables": batch.block_tables,
            "context_lens": batch.context_lens,
            "scale": layer.scale,
            "softcap": layer.softcap or 0.0,
            "num_sequences": sequences,
            "table_stride": batch.block_tables.stride(0),
            "QUERY_HEADS": heads.query,
            "KV_HEADS": heads.kv,
            "DIM": heads.dim,
            "HAS_SOFTCAP": layer.softcap is not None,
            "NUMBERS": TRITON_TYPES[kind],
            "DOT": multiplied_type(kind),
            "TOGETHER": self.together,
            "ROWS": ROWS if keys.element_size() == 1 else self.rows,
            "KEYS": KEYS,
            "BLOCK": head_block(heads),
            "num_warps": WARPS,
            "num_stages": stages_for(head_block(heads)),
            **launch_options(len(qkv)),
        }
        parts, part_stats = (None, None) if splits is None else splits.memory(heads.query, heads.dim)
        if splits is not None and self.members is not None:
            cascade.attend[(sequences, heads.kv, num_segments(batch))](
                partials=splits.partials,
                members=self.members,
                parts=parts,
                part_stats=part_stats,
                SLOTS=self.members.shape[2],
                **same,
            )
        else:
            tiles = len(qkv) // self.together + sequences if splits is None else splits.launched
            attention.attend[(tiles * heads.kv,)](
                query_starts=batch.query_starts,
                programs=None if splits is None else splits.programs,
                partials=None if splits is None else splits.partials,
                sinks=sinks,
                out=out,
                parts=parts,
                part_stats=part_stats,
                WINDOW=self.window or 0,
                HAS_SINKS=sinks is not None,
                APART=splits is not None,
                **same,
            )
        if splits is not None and parts is not None and part_stats is not None:
            splits.join(parts, part_stats, out, sinks, group=heads.query // heads.kv)
        return out

    def _prepare(
        self, qkv: torch.Tensor, rotation: Rotation, norm: Norm | None, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Queries [T, H, D], ready; keys and values are in the cache."""
        heads, tokens = self.heads, self.batch.slot_mapping.shape[0]
        check_rows(qkv, (tokens, (heads.query + 2 * heads.kv) * heads.dim), qkv.dtype)
        queries = torch.empty((tokens, heads.query, heads.dim), dtype=qkv.dtype, device=qkv.device)
        if tokens:
            attention.prepare[(tokens, triton.cdiv(heads.query + 2 * heads.kv, HEADS_TOGETHER))](
                qkv,
                rotation.cos,
                rotation.sin,
                None if norm is None else norm.weight,
                self.batch.slot_mapping,
                queries,
                keys,
                values,
                0.0 if norm is None else norm.eps,
                QKV_STRIDE=qkv.stride(0),
                QUERY_HEADS=heads.query,
                KV_HEADS=heads.kv,
                DIM=heads.dim,
                HALF=rotation.cos.shape[1],
                HAS_NORM=norm is not None,
                BLOCK=head_block(heads),
                HEADS=HEADS_TOGETHER,
                **launch_options(tokens),
            )
        return queries


def plan_attention(batch: PagedBatch, heads: HeadShape, window: int | None) -> TritonAttentionMetadata:
    """The plan of one step. Raises KernelInputError where heads do not fit the kernel."""
    if heads.query // heads.kv > ROWS:
        raise KernelInputError(f"{heads.query} query heads cannot share {heads.kv} key/value heads: {ROWS} at most")
    sequences, group, bytes_each = len(batch.context_lens), heads.query // heads.kv, heads.query * heads.dim * 4
    max_segments = num_segments(batch, window or 0)
    shared = batch.shares_prefix and window is None and len(batch.positions) * max_segments <= num_parts(bytes_each)
    few = len(batch.positions) == sequences and group <= FEW_ROWS and head_block(heads) >= FEW_FROM and not shared
    rows = FEW_ROWS if few else ROWS
    tiles = len(batch.positions) // (rows // group) + sequences
    splits = None
    if shared or max_segments > split_length(tiles * heads.kv):
        splits = SplitPlan.of(batch, rows // group, heads.kv, bytes_each, window=window or 0, always=shared)
    members = _find_shared(batch, rows // group) if shared else None
    return TritonAttentionMetadata(batch, heads, window, splits, members, rows)


def stages_for(block: int) -> int:
    """Stages of heads of so many numbers."""
    return STAGES if block <= KEPT_AHEAD else STAGES - 1


def head_block(heads: HeadShape) -> int:
    """Numbers of a head as kernels hold them: a power of two."""
    return max(16, int(triton.next_power_of_2(heads.dim)))


def _find_shared(batch: PagedBatch, together: int) -> torch.Tensor:
    """The sequences that read each segment together: see `jit.cascade.find_shared`."""
    sequences = len(batch.context_lens)
    slots = triton.next_power_of_2(together)
    members = torch.empty((num_segments(batch), sequences, slots), dtype=torch.int32, device=batch.block_tables.device)
    cascade.find_shared[(sequences, num_segments(batch))](
        batch.block_tables,
        batch.context_lens,
        members,
        sequences,
        batch.block_tables.stride(0),
        TOGETHER=together,
        SLOTS=slots,
        BLOCK=COMPARED,
    )
    return members


def _numbers(cache: torch.Tensor) -> torch.Tensor:
    """A cache of bytes holds fp8 numbers."""
    return cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache


def _multiplied(cache: torch.Tensor) -> torch.dtype:
    """The type in which a cache's numbers are multiplied: those of 8 bits are converted."""
    return cache.dtype if cache.dtype in TRITON_TYPES else torch.bfloat16
