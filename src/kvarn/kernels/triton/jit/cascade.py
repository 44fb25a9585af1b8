"""Attention of sequences that decode and share a prefix: each of its blocks is read once for all of them.

What is shared is a segment of 256 positions: 16 blocks that are the same in several block tables. The rows of a program
are those of several sequences then; it leaves the segment's sums and statistics for `segments.join`, as for each
sequence alone: so the bits are those of `attention.attend`.

Sources: RelayAttention (Zhu et al. 2024), Hydragen (Juravsky et al. 2024).
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.attention import read_segment
from kvarn.kernels.triton.jit.overlap import wait_for_earlier_kernel
from kvarn.kernels.triton.jit.segments import SEGMENT

SEGMENT_BLOCKS = tl.constexpr(16)


@triton.jit(do_not_specialize=["num_sequences", "table_stride"])
def find_shared(
    tables, context_lens, members, num_sequences, table_stride, TOGETHER: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Group the sequences that read the same segment. Program (s, z): sequence s and segment z.

    tables [S, blocks] int32; context_lens [S]. members [segments, S, SLOTS] int32: those of tile (z, s), the others -1;
    SLOTS: a power of two. Of up to TOGETHER sequences with the same segment the first one's tile has all, and the tiles
    of the others are empty.
    """
    own = tl.program_id(0)
    segment = tl.program_id(1)
    context = tl.load(context_lens + own)
    whole = context >= (segment + 1) * SEGMENT
    b = tl.arange(0, SEGMENT_BLOCKS)
    tables += segment * SEGMENT_BLOCKS
    blocks = tl.load(tables + own.to(tl.int64) * table_stride + b, mask=whole & (b >= 0), other=-1)
    before = 0
    after = 0
    for first in range(0, tl.where(whole, num_sequences, 0), BLOCK):
        same = _same(tables, context_lens, blocks, first, num_sequences, table_stride, segment, whole, BLOCK)
        other = first + tl.arange(0, BLOCK)
        before += tl.sum((same & (other < own)).to(tl.int32), 0)
        after += tl.sum((same & (other > own)).to(tl.int32), 0)
    slot = before % TOGETHER
    leader = own
    if slot > 0:
        # The one that has as many before it as valid are in whole tiles.
        leader = own * 0
        passed = 0
        for first in range(0, num_sequences, BLOCK):
            same = _same(tables, context_lens, blocks, first, num_sequences, table_stride, segment, whole, BLOCK)
            number = passed + tl.cumsum(same.to(tl.int32), 0)
            valid = same & (number == before - slot + 1)
            leader += tl.sum(tl.where(valid, first + tl.arange(0, BLOCK), 0), 0)
            passed += tl.sum(same.to(tl.int32), 0)
    of_segment = members + segment.to(tl.int64) * num_sequences * SLOTS
    reads = context > segment * SEGMENT
    tl.store(of_segment + leader * SLOTS + slot, own, mask=reads)
    slots = tl.arange(0, SLOTS)
    left = tl.where(reads & (slot == 0), after + 1, 0)
    # Slots left over: of its own tile, unless another sequence leads it.
    tl.store(of_segment + own * SLOTS + slots, -1, mask=slots >= tl.minimum(left, TOGETHER))


@triton.jit
def _same(
    tables, context_lens, blocks, first, num_sequences, table_stride, segment, whole, BLOCK: tl.constexpr
):  # fmt: skip
    """[BLOCK]: whether sequences from `first` on have this segment whole, in these blocks."""
    other = first + tl.arange(0, BLOCK)
    valid = whole & (other < num_sequences)
    valid &= tl.load(context_lens + other, mask=valid, other=0) >= (segment + 1) * SEGMENT
    b = tl.arange(0, SEGMENT_BLOCKS)
    theirs = tl.load(tables + other.to(tl.int64)[:, None] * table_stride + b[None, :], mask=valid[:, None], other=-2)
    return valid & (tl.sum((theirs != blocks[None, :]).to(tl.int32), 1) == 0)


@triton.jit(do_not_specialize=["num_sequences", "table_stride"])
def attend(
    queries,
    keys,
    values,
    tables,
    context_lens,
    partials,
    members,
    parts,
    part_stats,
    scale,
    softcap,
    num_sequences,
    table_stride,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    TOGETHER: tl.constexpr,
    SLOTS: tl.constexpr,
    NUMBERS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (i, g, z): segment z for the members of its tile i, key/value head g: see `attention.attend` with APART,
    and `find_shared`. queries [S, QUERY_HEADS, DIM], one of each sequence."""
    wait_for_earlier_kernel()
    group: tl.constexpr = QUERY_HEADS // KV_HEADS
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    number = tl.program_id(2)
    of_tile = members + (number.to(tl.int64) * num_sequences + tile) * SLOTS
    leader = tl.load(of_tile)
    if leader < 0:
        return
    row = tl.arange(0, ROWS)
    slot = row // group
    member = tl.load(of_tile + slot, mask=slot < TOGETHER, other=-1)
    real = member >= 0
    context = tl.load(context_lens + member, mask=real, other=0)
    head = kv_head * group + row % group
    d = tl.arange(0, BLOCK)
    inside = real[:, None] & (d < DIM)[None, :]
    place = member.to(tl.int64) * QUERY_HEADS + head
    q = tl.load(queries + place[:, None] * DIM + d[None, :], mask=inside, other=0.0).to(NUMBERS).to(DOT)
    table = tables + leader.to(tl.int64) * table_stride
    own_top, own_total, own_mixed = read_segment(
        q, keys, values, table, number, 0, tl.load(context_lens + leader), context - 1, kv_head, scale, softcap,
        KV_HEADS, DIM, 0, HAS_SOFTCAP, NUMBERS, DOT, ROWS, KEYS, BLOCK,
    )  # fmt: skip
    part = (tl.load(partials + member, mask=real, other=0) + number) * QUERY_HEADS + head
    tl.store(parts + part[:, None] * DIM + d[None, :], own_mixed, mask=inside)
    tl.store(part_stats + part * 2, own_top, mask=real)
    tl.store(part_stats + part * 2 + 1, own_total, mask=real)
