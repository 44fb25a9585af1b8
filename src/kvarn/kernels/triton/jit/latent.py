"""Attention over latent rows (DeepSeek-V2 2024), in the absorbed form: a cached row is the key of all heads, and its
first numbers are their value.

Segments, their joining and the 64 rows of a program are those of `jit.attention`, and so is what follows: a token has
the same bits alone, in a batch, as a decode step and as part of a prompt. A row is read once for up to 64 heads.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.attention import BLOCK_SIZE, weigh
from kvarn.kernels.triton.jit.segments import SEGMENT, rescale, share_of, work_of


@triton.jit
def write(rows, slots, cache, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A token's row [T, SIZE] into its slot of the cache [slots, SIZE]; tokens with a negative slot [T] have none."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    d = tl.arange(0, BLOCK)
    own = tl.load(rows + token * STRIDE + d, mask=d < SIZE, other=0.0)
    tl.store(cache + slot * SIZE + d, own.to(cache.dtype.element_ty), mask=(d < SIZE) & (slot >= 0))


@triton.jit(do_not_specialize=["num_sequences", "table_stride", "first_token", "num_tokens", "room"])
def attend(
    queries,
    cache,
    tables,
    context_lens,
    query_starts,
    programs,
    partials,
    out,
    parts,
    part_stats,
    scale,
    num_sequences,
    table_stride,
    first_token,
    num_tokens,
    room,
    HEADS: tl.constexpr,
    HEADS_TOGETHER: tl.constexpr,
    SIZE: tl.constexpr,
    VALUE: tl.constexpr,
    NUMBERS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Attention of one program's rows, to `out` [T, HEADS, VALUE].

    Program h + i * (groups of heads): HEADS_TOGETHER heads from h * HEADS_TOGETHER on; of queries and segments what
    `segments.plan_splits` gives program i, of the tokens from first_token on. For other arguments see there, and
    `segments.join`. Behind the `room` partials are two for each of num_tokens tokens: the registers cannot hold the
    sums of two segments, so a program that joins its own keeps there those of one, and of all before it. queries
    [T, HEADS, SIZE]; cache [slots, SIZE].
    """
    together: tl.constexpr = ROWS // HEADS_TOGETHER
    groups: tl.constexpr = (HEADS + HEADS_TOGETHER - 1) // HEADS_TOGETHER
    sequence, start, count, first_query, own, splits, partial = work_of(
        tl.program_id(0) // groups, programs, partials, query_starts, num_sequences, together
    )
    if sequence < 0:
        return
    context = tl.load(context_lens + sequence)
    last = context - count + tl.minimum(first_query + together, count)
    row = tl.arange(0, ROWS)
    first_head = tl.program_id(0) % groups * HEADS_TOGETHER
    real = row < _num_rows(count - first_query, first_head, together, HEADS, HEADS_TOGETHER)
    position = context - count + first_query + row // HEADS_TOGETHER
    # Either one query has all rows, or each query all heads: rows lie side by side.
    first_row = (start + first_query).to(tl.int64) * HEADS + first_head
    q, q_rest = _numbers(queries + first_row * SIZE, row, real, SIZE, VALUE, NUMBERS, DOT, VALUE_BLOCK, REST_BLOCK)
    table = tables + sequence.to(tl.int64) * table_stride
    # Of a sequence without a context there is one segment, with nothing in it.
    end = tl.maximum((last + SEGMENT - 1) // SEGMENT, 1)
    for number in tl.range(own, end, splits, disable_licm=True):
        top, total, mixed = _read_segment(
            q, q_rest, cache, table, number, last, position, scale,
            SIZE, VALUE, NUMBERS, DOT, ROWS, KEYS, VALUE_BLOCK, REST_BLOCK,
        )  # fmt: skip
        # Asked again: there are no registers to keep it.
        start, count, first_query, _, _, partial = share_of(
            tl.program_id(0) // groups, sequence, programs, partials, query_starts, together
        )
        real = row < _num_rows(count - first_query, first_head, together, HEADS, HEADS_TOGETHER)
        first_part = partial + number * count
        if partial < 0:
            first_part = room + start - first_token
        first_part = (first_part + first_query) * HEADS + first_head
        d = tl.arange(0, VALUE_BLOCK)[None, :]
        tl.store(parts + first_part * VALUE + row[:, None] * VALUE + d, mixed, mask=real[:, None] & (d < VALUE))
        if partial >= 0:
            tl.store(part_stats + first_part * 2 + row * 2, top, mask=real)
            tl.store(part_stats + first_part * 2 + row * 2 + 1, total, mask=real)
        else:
            tl.debug_barrier()  # other threads have written what this one reads
            stats = part_stats + (num_tokens * HEADS + first_part) * 2 + row * 2
            there = real & (number > 0)
            top, kept, added = rescale(tl.load(stats, mask=there, other=float("-inf")), top)
            total = tl.fma(tl.load(stats + 1, mask=there, other=0.0), kept, total * added)
            tl.debug_barrier()
            tl.store(stats, top, mask=real)
            tl.store(stats + 1, total, mask=real)
            for column in range(0, VALUE, COLUMNS):
                c = column + tl.arange(0, COLUMNS)[None, :]
                inside = real[:, None] & (c < VALUE)
                sums = parts + first_part * VALUE + row[:, None] * VALUE + c
                joined = sums + num_tokens * (HEADS * VALUE)
                result = tl.load(sums, mask=inside, other=0.0) * added[:, None]
                earlier = tl.load(joined, mask=inside & (number > 0), other=0.0)
                result = tl.fma(earlier, tl.broadcast_to(kept[:, None], earlier.shape), result)
                tl.store(joined, result, mask=inside)
                if number + 1 == end:
                    result = result / tl.where(total > 0, total, 1.0)[:, None]
                    first_row = (start + first_query).to(tl.int64) * HEADS + first_head
                    to = out + first_row * VALUE + row[:, None] * VALUE + c
                    tl.store(to, result.to(out.dtype.element_ty), mask=inside)
            tl.debug_barrier()


@triton.jit
def _num_rows(queries, first_head, TOGETHER: tl.constexpr, HEADS: tl.constexpr, HEADS_TOGETHER: tl.constexpr):
    """Rows of a program that has one query and some heads, or some queries and all heads."""
    num_rows = tl.minimum(HEADS - first_head, HEADS_TOGETHER)
    if TOGETHER > 1:
        num_rows = tl.minimum(TOGETHER, queries) * HEADS
    return num_rows


@triton.jit
def _read_segment(
    q, q_rest, cache, table, number, last, position, scale,
    SIZE: tl.constexpr, VALUE: tl.constexpr, NUMBERS: tl.constexpr, DOT: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, VALUE_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
):  # fmt: skip
    """Like `attention.read_segment`."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    for key in range(number * SEGMENT, tl.minimum(number * SEGMENT + SEGMENT, last), KEYS):
        at = key + tl.arange(0, KEYS)
        seen = at < last
        # Two blocks: addresses of a block's rows differ by constants, which takes few registers.
        block = tl.load(table + key // BLOCK_SIZE).to(tl.int64)
        after = tl.load(table + key // BLOCK_SIZE + 1, mask=key + BLOCK_SIZE < last, other=0).to(tl.int64)
        row = tl.arange(0, KEYS)
        slot = tl.where(row < BLOCK_SIZE, block, after) * BLOCK_SIZE + row % BLOCK_SIZE
        k, k_rest = _numbers(cache, slot, seen, SIZE, VALUE, NUMBERS, DOT, VALUE_BLOCK, REST_BLOCK)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee") * scale
        top, weights, fade = weigh(scores, at[None, :], position[:, None], seen[None, :], top, 0.0, 0, False, 1)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(NUMBERS).to(DOT), k, mixed * fade[:, None], input_precision="ieee")
    return top, total, mixed


@triton.jit
def _numbers(
    rows, at, real, SIZE: tl.constexpr, VALUE: tl.constexpr, NUMBERS: tl.constexpr, DOT: tl.constexpr,
    VALUE_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows `at` of SIZE numbers: the first VALUE of each, and the others."""
    d = tl.arange(0, VALUE_BLOCK)
    rest = VALUE + tl.arange(0, REST_BLOCK)
    rows += at[:, None] * SIZE
    own = tl.load(rows + d[None, :], mask=real[:, None] & (d < VALUE)[None, :], other=0.0)
    others = tl.load(rows + rest[None, :], mask=real[:, None] & (rest < SIZE)[None, :], other=0.0)
    return own.to(NUMBERS).to(DOT), others.to(NUMBERS).to(DOT)
