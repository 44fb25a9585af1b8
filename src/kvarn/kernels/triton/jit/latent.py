"""Attention over latent rows (DeepSeek-V2 2024), in the absorbed form: a cached row is the key of all heads, and its
first numbers are their value.

Segments, their joining and the 64 rows of a program are those of `jit.attention`, and so is what follows: a token has
the same bits alone, in a batch, as a decode step and as part of a prompt. A row is read once for up to 64 heads.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.attention import BLOCK_SIZE, SEGMENT, sequence_of, weigh


@triton.jit
def write(rows, slots, cache, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A token's row [T, SIZE] into its slot of the cache [slots, SIZE]; tokens with a negative slot [T] have none."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    d = tl.arange(0, BLOCK)
    own = tl.load(rows + token * STRIDE + d, mask=d < SIZE, other=0.0)
    tl.store(cache + slot * SIZE + d, own.to(cache.dtype.element_ty), mask=(d < SIZE) & (slot >= 0))


@triton.jit(
    do_not_specialize=["num_sequences", "table_stride", "max_segments", "first_tile", "first_token", "end_token"]
)
def attend(
    queries,
    cache,
    tables,
    context_lens,
    query_starts,
    parts,
    part_stats,
    scale,
    num_sequences,
    table_stride,
    max_segments,
    first_tile,
    first_token,
    end_token,
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
):
    """Attention of one program's rows to one segment, for `attention.join`: the registers have no room for the sums of
    two.

    Program (i, h, z): the queries of tile first_tile + i (see `sequence_of`), HEADS_TOGETHER heads from
    h * HEADS_TOGETHER on, segment z. Of the tokens first_token to end_token: parts [tokens, HEADS, max_segments, VALUE]
    and part_stats [tokens, HEADS, max_segments, 2], float32. queries [T, HEADS, SIZE]; cache [slots, SIZE].
    """
    together: tl.constexpr = ROWS // HEADS_TOGETHER
    tile = first_tile + tl.program_id(0)
    sequence, first_query, start, count = sequence_of(tile, query_starts, num_sequences, together)
    number = tl.program_id(2)
    context = tl.load(context_lens + sequence)
    last = context - count + tl.minimum(first_query + together, count)
    token = start + first_query
    if (first_query >= count) | (number * SEGMENT >= last) | (token >= end_token) | (token + together <= first_token):
        return
    row = tl.arange(0, ROWS)
    query = first_query + row // HEADS_TOGETHER
    head = tl.program_id(1) * HEADS_TOGETHER + row % HEADS_TOGETHER
    real = (row < together * HEADS_TOGETHER) & (query < count) & (head < HEADS)
    real &= (start + query >= first_token) & (start + query < end_token)
    position = context - count + query
    place = (start + query).to(tl.int64) * HEADS + head
    q, q_rest = _numbers(queries, place, real, SIZE, VALUE, NUMBERS, DOT, VALUE_BLOCK, REST_BLOCK)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    table = tables + sequence.to(tl.int64) * table_stride
    for key in range(number * SEGMENT, tl.minimum(number * SEGMENT + SEGMENT, last), KEYS):
        at = key + tl.arange(0, KEYS)
        seen = at < last
        block = tl.load(table + at // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + at % BLOCK_SIZE
        k, k_rest = _numbers(cache, slot, seen, SIZE, VALUE, NUMBERS, DOT, VALUE_BLOCK, REST_BLOCK)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee") * scale
        visible = (at[None, :] <= position[:, None]) & seen[None, :]
        top, total, weights, fade = weigh(scores, visible, top, total)
        mixed = tl.dot(weights.to(NUMBERS).to(DOT), k, mixed * fade[:, None], input_precision="ieee")
    piece = ((start + query - first_token).to(tl.int64) * HEADS + head) * max_segments + number
    d = tl.arange(0, VALUE_BLOCK)
    tl.store(parts + piece[:, None] * VALUE + d[None, :], mixed, mask=real[:, None] & (d < VALUE)[None, :])
    tl.store(part_stats + piece * 2, top, mask=real)
    tl.store(part_stats + piece * 2 + 1, total, mask=real)


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
