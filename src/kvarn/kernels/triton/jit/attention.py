"""Attention of the rows of a step over the paged cache: decode, verification and prompts in one kernel.

Keys are read in segments of 256 positions counted from the start of a sequence (as by the kernels in csrc/). Each
segment is one softmax; segments are joined in order, by the program that computed them, or, where several share them,
by `segments.join`. Both do the same operations on a row's numbers, and a program always multiplies 64 rows: so a
token's result has the same bits alone, in a batch, as a decode step and as part of a prompt, cut anywhere.

The 64 rows of a program are the query heads of one key/value head, of neighbouring queries of one sequence.

Sources: Flash-Attention 2 and Flash-Decoding (Dao 2023); finding a program's sequence in the prefix sums of queries as
in vLLM's unified Triton kernel.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.convert import four_converted
from kvarn.kernels.triton.jit.elementwise import tanh
from kvarn.kernels.triton.jit.overlap import wait_for_earlier_kernel
from kvarn.kernels.triton.jit.segments import LOG2E, SEGMENT, rescale, segments_of, work_of

BLOCK_SIZE = tl.constexpr(16)


@triton.jit
def prepare(
    qkv,
    cos,
    sin,
    norm,
    slots,
    queries,
    keys,
    values,
    eps,
    QKV_STRIDE: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
):
    """HEADS heads of one token: normed, rotated, and written to `queries` or into the cache.

    qkv [T, (H + 2 G) DIM]; cos, sin [T, HALF]; norm [H + G, DIM]; slots [T], negative: nothing is cached; queries
    [T, H, DIM]; keys, values [blocks, G, BLOCK_SIZE, DIM].
    """
    wait_for_earlier_kernel()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    at = qkv + token * QKV_STRIDE + head * DIM
    inside = (d < DIM) & (head < QUERY_HEADS + 2 * KV_HEADS)
    own = tl.load(at + d, mask=inside, other=0.0)
    kind = own.dtype
    slot = tl.load(slots + token)
    # The number that each turns with; values turn with none.
    other = tl.where(d < HALF, d + HALF, d - HALF)
    turns = inside & (head < QUERY_HEADS + KV_HEADS)
    rotated = turns & (d < 2 * HALF)
    partner = tl.load(at + other, mask=rotated, other=0.0)
    if HAS_NORM:
        numbers = own.to(tl.float32)
        factor = tl.rsqrt(tl.sum(numbers * numbers, 1) / DIM + eps)[:, None]
        weight = norm + head * DIM
        own = tl.where(turns, numbers * factor * tl.load(weight + d, mask=turns, other=0.0), numbers).to(kind)
        partner = (partner.to(tl.float32) * factor * tl.load(weight + other, mask=rotated, other=0.0)).to(kind)
    if HALF > 0:
        angle = token * HALF + tl.where(d < HALF, d, d - HALF)
        c = tl.load(cos + angle, mask=d < 2 * HALF, other=1.0)
        s = tl.load(sin + angle, mask=d < 2 * HALF, other=0.0)
        turn = tl.where(d < HALF, -s, s)
        turned = own.to(tl.float32) * c + partner.to(tl.float32) * turn
        own = tl.where(turns, turned, own.to(tl.float32)).to(kind)
    tl.store(queries + (token * QUERY_HEADS + head) * DIM + d, own, mask=inside & (head < QUERY_HEADS))
    cached = (slot // BLOCK_SIZE) * (KV_HEADS * BLOCK_SIZE * DIM) + slot % BLOCK_SIZE * DIM + d
    head -= QUERY_HEADS
    to = keys + cached + head * (BLOCK_SIZE * DIM)
    tl.store(to, own.to(keys.dtype.element_ty), mask=turns & (head >= 0) & (slot >= 0))
    head -= KV_HEADS
    to = values + cached + head * (BLOCK_SIZE * DIM)
    tl.store(to, own.to(values.dtype.element_ty), mask=inside & (head >= 0) & (slot >= 0))


@triton.jit(do_not_specialize=["num_sequences", "table_stride"])
def attend(
    queries,
    keys,
    values,
    tables,
    context_lens,
    query_starts,
    programs,
    partials,
    sinks,
    out,
    parts,
    part_stats,
    scale,
    softcap,
    num_sequences,
    table_stride,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    APART: tl.constexpr,
    TOGETHER: tl.constexpr,
    NUMBERS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Attention of one program's rows, to `out` [T, H DIM].

    Program g + G i: key/value head g, tile i of TOGETHER queries, all of its segments (see `sequence_of`). With APART:
    what `segments.plan_splits`, which has written `programs` and `partials`, gives to program i. Where that is a part
    of a tile's segments, sums and statistics are left for `segments.join` (`parts`, `part_stats`). sinks [H]: see
    `AttentionMetadata.run`. NUMBERS: the type that queries and weights are rounded to; DOT: the one that is multiplied.
    """
    wait_for_earlier_kernel()
    group: tl.constexpr = QUERY_HEADS // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    if APART:
        sequence, start, count, first_query, own, splits, partial = work_of(
            tl.program_id(0) // KV_HEADS, programs, partials, query_starts, num_sequences, TOGETHER
        )
        if sequence < 0:
            return
    else:
        sequence, start, count, first_query = sequence_of(
            tl.program_id(0) // KV_HEADS, query_starts, num_sequences, TOGETHER
        )
        if first_query < 0:
            return
    context = tl.load(context_lens + sequence)
    row = tl.arange(0, ROWS)
    real = row < tl.minimum(TOGETHER, count - first_query) * group
    position = context - count + first_query + row // group
    head = kv_head * group + row % group
    d = tl.arange(0, BLOCK)
    inside = real[:, None] & (d < DIM)[None, :]
    first_row = ((start + first_query).to(tl.int64) * QUERY_HEADS + kv_head * group) * DIM
    place = (row // group * QUERY_HEADS + row % group)[:, None] * DIM + d[None, :]
    q = tl.load(queries + first_row + place, mask=inside, other=0.0).to(NUMBERS).to(DOT)
    last = context - count + tl.minimum(first_query + TOGETHER, count)
    first = tl.full([], 0, tl.int32)
    if WINDOW > 0:
        first = tl.maximum(context - count + first_query + 1 - WINDOW, 0)
    earliest, _ = segments_of(context, count, WINDOW)
    table = tables + sequence.to(tl.int64) * table_stride
    end = (last + SEGMENT - 1) // SEGMENT
    if splits > 1 if APART else False:
        for number in range(first // SEGMENT + own, end, splits):
            own_top, own_total, own_mixed = read_segment(
                q, keys, values, table, number, first, last, position, kv_head, scale, softcap,
                KV_HEADS, DIM, WINDOW, HAS_SOFTCAP, NUMBERS, DOT, ROWS, KEYS, BLOCK,
            )  # fmt: skip
            part = (partial + (number - earliest) * count) * QUERY_HEADS + (kv_head * count + first_query) * group + row
            tl.store(parts + part[:, None] * DIM + d[None, :], own_mixed, mask=inside)
            tl.store(part_stats + part * 2, own_top, mask=real)
            tl.store(part_stats + part * 2 + 1, own_total, mask=real)
    else:
        top, total, mixed = read_segments(
            q, keys, values, table, first, last, position, kv_head, scale, softcap,
            KV_HEADS, DIM, WINDOW, HAS_SOFTCAP, NUMBERS, DOT, ROWS, KEYS, BLOCK,
        )  # fmt: skip
        if HAS_SINKS:
            top, kept, added = rescale(top, tl.load(sinks + head, mask=real, other=0.0) * LOG2E)
            total = tl.fma(total, kept, added)
            mixed *= kept[:, None]
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + first_row + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def read_segments(
    q, keys, values, table, first, last, position, kv_head, scale, softcap,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All segments, one after the other, and joined: what `read_segment` returns of one.

    One loop over all keys: keys of a segment are on their way while the one before it is computed.
    """
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    own_top, totals, own_mixed = empty_sums(ROWS, BLOCK)
    mixed = own_mixed
    begin = first // KEYS * KEYS
    blocks = blocks_of(table, begin, first, last, KEYS)
    for key in range(begin, last, KEYS):
        these, blocks = blocks, blocks_of(table, key + KEYS, first, last, KEYS)
        scores, place = scored(
            q, keys, these, key, first, last, kv_head, scale, KV_HEADS, DIM, NUMBERS, DOT, ROWS, KEYS, BLOCK
        )
        if (key + tl.full([], 0, tl.int32)) % SEGMENT == 0:
            top, total, mixed = joined(top, total, mixed, own_top, totals, own_mixed, ROWS)
            own_top = tl.full([ROWS], float("-inf"), tl.float32)  # by which the sums are multiplied by zero
        own_top, totals, own_mixed = mixed_in(
            scores, values, place, key, first, last, position, softcap, own_top, totals, own_mixed,
            DIM, WINDOW, HAS_SOFTCAP, NUMBERS, DOT, ROWS, KEYS, BLOCK,
        )  # fmt: skip
    top, total, mixed = joined(top, total, mixed, own_top, totals, own_mixed, ROWS)
    if ROWS < 64:
        mixed = tl.trans(mixed)
    return top, total, mixed


@triton.jit
def joined(top, total, mixed, own_top, totals, own_mixed, ROWS: tl.constexpr):
    """Segments that are joined, with the next one."""
    axis: tl.constexpr = 0 if ROWS < 64 else 1
    new_top, kept, added = rescale(top, own_top)
    total = tl.fma(total, kept, tl.max(totals, axis) * added)
    kept = tl.broadcast_to(tl.expand_dims(kept, axis), mixed.shape)
    mixed = tl.fma(mixed, kept, own_mixed * tl.expand_dims(added, axis))
    return new_top, total, mixed


@triton.jit
def empty_sums(ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A segment of no keys: the largest score, the sums of weights and of weighted values."""
    if ROWS < 64:
        totals = tl.zeros([64, ROWS], tl.float32)
        mixed = tl.zeros([BLOCK, ROWS], tl.float32)
    else:
        totals = tl.zeros([ROWS, 8], tl.float32)
        mixed = tl.zeros([ROWS, BLOCK], tl.float32)
    return tl.full([ROWS], float("-inf"), tl.float32), totals, mixed


@triton.jit
def blocks_of(table, key, first, last, KEYS: tl.constexpr):
    """The blocks of keys from `key` on: [KEYS]."""
    at = key + tl.arange(0, KEYS)
    return tl.load(table + at // BLOCK_SIZE, mask=(at >= first) & (at < last), other=0)


@triton.jit
def read_segment(
    q, keys, values, table, number, first, last, position, kv_head, scale, softcap,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The softmax of rows q [ROWS, BLOCK] over what they see of one segment of a block table: the largest score, the
    sum of weights and the sum of weighted values [ROWS, BLOCK]. Keys before `first` and from `last` on are not read."""
    own_top, totals, own_mixed = empty_sums(ROWS, BLOCK)
    begin = tl.maximum(number * SEGMENT, first // KEYS * KEYS)
    blocks = blocks_of(table, begin, first, last, KEYS)
    for key in range(begin, tl.minimum(number * SEGMENT + SEGMENT, last), KEYS):
        these, blocks = blocks, blocks_of(table, key + KEYS, first, last, KEYS)
        scores, place = scored(
            q, keys, these, key, first, last, kv_head, scale, KV_HEADS, DIM, NUMBERS, DOT, ROWS, KEYS, BLOCK
        )
        own_top, totals, own_mixed = mixed_in(
            scores, values, place, key, first, last, position, softcap, own_top, totals, own_mixed,
            DIM, WINDOW, HAS_SOFTCAP, NUMBERS, DOT, ROWS, KEYS, BLOCK,
        )  # fmt: skip
    if ROWS < 64:
        own_mixed = tl.trans(own_mixed)
    return own_top, tl.max(totals, 0 if ROWS < 64 else 1), own_mixed


@triton.jit
def scored(
    q, keys, blocks, key, first, last, kv_head, scale, KV_HEADS: tl.constexpr, DIM: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The scores of rows q for keys from `key` on, and where these keys begin in the cache.

    The left operand of a product fills an instruction's 64 rows. With few rows (16, where each sequence has one query)
    that is the keys, and all is transposed; each number is the same chain of products either way.
    """
    d = tl.arange(0, BLOCK)
    at = key + tl.arange(0, KEYS)
    place = (blocks.to(tl.int64) * KV_HEADS + kv_head) * (BLOCK_SIZE * DIM) + at % BLOCK_SIZE * DIM
    valid = ((at >= first) & (at < last))[:, None] & (d < DIM)[None, :]
    k = four_converted(tl.load(keys + place[:, None] + d[None, :], mask=valid, other=0.0), NUMBERS, DOT)
    if ROWS < 64:
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    return scores * scale, place


@triton.jit
def mixed_in(
    scores, values, place, key, first, last, position, softcap, own_top, totals, own_mixed, DIM: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, NUMBERS: tl.constexpr, DOT: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of a segment with the values of more keys. Sums of weights are products with ones, so that these, too,
    are the same chain for few rows."""
    d = tl.arange(0, BLOCK)
    at = key + tl.arange(0, KEYS)
    seen = (at >= first) & (at < last)
    valid = seen[:, None] & (d < DIM)[None, :]
    if ROWS < 64:
        own_top, weights, fade = weigh(
            scores, at[:, None], position[None, :], seen[:, None], own_top, softcap, WINDOW, HAS_SOFTCAP, 0
        )
    else:
        own_top, weights, fade = weigh(
            scores, at[None, :], position[:, None], seen[None, :], own_top, softcap, WINDOW, HAS_SOFTCAP, 1
        )
    weights = weights.to(NUMBERS).to(DOT)
    v = four_converted(tl.load(values + place[:, None] + d[None, :], mask=valid, other=0.0), NUMBERS, DOT)
    if ROWS < 64:
        totals = tl.dot(tl.full([64, KEYS], 1.0, DOT), weights, totals * fade[None, :], input_precision="ieee")
        own_mixed = tl.dot(tl.trans(v), weights, own_mixed * fade[None, :], input_precision="ieee")
    else:
        totals = tl.dot(weights, tl.full([KEYS, 8], 1.0, DOT), totals * fade[:, None], input_precision="ieee")
        own_mixed = tl.dot(weights, v, own_mixed * fade[:, None], input_precision="ieee")
    return own_top, totals, own_mixed


@triton.jit
def weigh(
    scores, at, position, seen, top, softcap, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, AXIS: tl.constexpr
):  # fmt: skip
    """One step of a softmax that is taken block by block along an axis, which has the keys `at`: the new maximum, the
    weights of these scores, and what earlier sums are multiplied by."""
    if HAS_SOFTCAP:
        scores = softcap * tanh(scores / softcap)
    visible = (at <= position) & seen
    if WINDOW > 0:
        visible &= at > position - WINDOW
    scores = tl.where(visible, scores * LOG2E, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, AXIS))
    level = tl.where(new_top == float("-inf"), 0.0, new_top)
    return new_top, tl.exp2(scores - tl.expand_dims(level, AXIS)), tl.exp2(top - level)


@triton.jit
def sequence_of(tile, query_starts, num_sequences, TOGETHER: tl.constexpr):
    """The queries that a tile computes: the sequence, its first token and number of queries, and the first query of the
    tile, where longer tiles come first; negative: the tile is left over.

    Sequence s has the tiles from query_starts[s] // TOGETHER + s on: as many as it needs, or one more.
    """
    low = 0
    high = num_sequences
    while low < high:
        middle = low + (high - low) // 2
        if tl.load(query_starts + middle) // TOGETHER + middle <= tile:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    after = (count + TOGETHER - 1) // TOGETHER - 1 - (tile - start // TOGETHER - sequence)
    return sequence, start, count, after * TOGETHER
