"""Segments of attention: which program computes which of them, and how they are joined.

Keys are read in segments of 256 positions counted from the start of a sequence. A tile of queries is computed by one
program, which joins its segments as it goes, or by several, each of which leaves the sums of some segments for `join`.
Both do the same operations on a row's numbers in the same order.

The host knows no contexts: a captured step is repeated with others. So `plan_splits` counts segments on the device,
once a step, and a launch has as many programs as it may give out at most.

Source: Flash-Decoding (Dao 2023).
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.overlap import wait_for_earlier_kernel

SEGMENT = tl.constexpr(256)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_sequences", "extra", "min_segments", "room"])
def plan_splits(
    query_starts,
    context_lens,
    programs,
    partials,
    tokens,
    num_sequences,
    extra,
    min_segments,
    room,
    TOGETHER: tl.constexpr,
    WINDOW: tl.constexpr,
    ALWAYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the programs that compute the tiles of each sequence. One program.

    Each gets up to `min_segments` segments, or one `extra`'th of all: no more programs than tiles and `extra`.
    Sequences whose sums find no room in `room` partials are not divided; with ALWAYS all are, and there must be room.

    query_starts [S + 1], context_lens [S]. Written, [S + 1] int32 each: the programs of the sequences before this one
    (`programs`); the first partial of a sequence that is divided, -1 of others (`partials`); the tokens of the divided
    sequences before it (`tokens`).
    """
    work = 0
    for first in range(0, num_sequences, BLOCK):
        tiles, _, segments = _sizes(query_starts, context_lens, first, num_sequences, TOGETHER, WINDOW, BLOCK)
        work += tl.sum(tiles * segments, 0)
    length = tl.maximum((work + extra - 1) // extra, min_segments)
    programs_before = 0
    pieces_before = 0
    tokens_before = 0
    for first in range(0, num_sequences, BLOCK):
        tiles, count, segments = _sizes(query_starts, context_lens, first, num_sequences, TOGETHER, WINDOW, BLOCK)
        splits = tl.maximum((segments + length - 1) // length, 1)
        wanted = tl.where(splits > 1, count * segments, 0)
        if ALWAYS:
            wanted = count * tl.maximum(segments, 1)
        wanted = tl.where(wanted > room, 0, wanted)
        end = pieces_before + tl.cumsum(wanted, 0)
        divided = (wanted > 0) & (end <= room)
        own_programs = tiles * tl.where(divided, splits, 1)
        own_tokens = tl.where(divided, count, 0)
        at = first + tl.arange(0, BLOCK)
        inside = at < num_sequences
        tl.store(programs + at, programs_before + tl.cumsum(own_programs, 0) - own_programs, mask=inside)
        tl.store(tokens + at, tokens_before + tl.cumsum(own_tokens, 0) - own_tokens, mask=inside)
        tl.store(partials + at, tl.where(divided, end - wanted, -1), mask=inside)
        programs_before += tl.sum(own_programs, 0)
        tokens_before += tl.sum(own_tokens, 0)
        pieces_before += tl.sum(wanted, 0)
    tl.store(programs + num_sequences, programs_before)
    tl.store(tokens + num_sequences, tokens_before)


@triton.jit
def _sizes(
    query_starts, context_lens, first, num_sequences, TOGETHER: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """[BLOCK] of the sequences from `first` on: tiles, queries, and segments that they see."""
    at = first + tl.arange(0, BLOCK)
    inside = at < num_sequences
    start = tl.load(query_starts + at, mask=inside, other=0)
    count = tl.load(query_starts + at + 1, mask=inside, other=0) - start
    context = tl.load(context_lens + at, mask=inside, other=0)
    _, segments = segments_of(context, count, WINDOW)
    return (count + TOGETHER - 1) // TOGETHER, count, segments


@triton.jit
def segments_of(context, count, WINDOW: tl.constexpr):
    """For the last `count` queries of a context: the first segment that one of them sees, and their number."""
    first = context * 0
    if WINDOW > 0:
        first = tl.maximum(context - count + 1 - WINDOW, 0) // SEGMENT
    return first, (context + SEGMENT - 1) // SEGMENT - first


@triton.jit
def work_of(program, programs, partials, query_starts, num_sequences, TOGETHER: tl.constexpr):
    """The sequence that `plan_splits` gave a program, and of it what `share_of` tells. A program that is left over gets
    sequence -1."""
    sequence = last_of(programs, num_sequences, program)
    if sequence >= num_sequences:
        sequence = -1
    start, count, first_query, own, splits, partial = share_of(
        program, tl.maximum(sequence, 0), programs, partials, query_starts, TOGETHER
    )
    return sequence, start, count, first_query, own, splits, partial


@triton.jit
def share_of(program, sequence, programs, partials, query_starts, TOGETHER: tl.constexpr):
    """A program's share of its sequence: the sequence's first token and number of queries; the first query of the tile,
    where longer tiles come first; the program's number among its splits, and their number; the sequence's first
    partial, -1 where the program is alone. Loads are not kept in registers."""
    begin = tl.load(programs + sequence, volatile=True)
    end = tl.load(programs + sequence + 1, volatile=True)
    start = tl.load(query_starts + sequence, volatile=True)
    count = tl.load(query_starts + sequence + 1, volatile=True) - start
    partial = tl.load(partials + sequence, volatile=True)
    tiles = tl.maximum((count + TOGETHER - 1) // TOGETHER, 1)
    splits = tl.maximum((end - begin) // tiles, 1)
    return (
        start,
        count,
        (tiles - 1 - (program - begin) // splits) * TOGETHER,
        (program - begin) % splits,
        splits,
        partial,
    )


@triton.jit
def last_of(starts, num_sequences, number):
    """The last of starts [S + 1], ascending from 0, that is not larger than a number."""
    low = 0
    high = num_sequences + 1
    while low < high:
        middle = low + (high - low) // 2
        if tl.load(starts + middle) <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(do_not_specialize=["num_sequences"])
def join(
    parts,
    part_stats,
    query_starts,
    context_lens,
    partials,
    tokens,
    sinks,
    out,
    num_sequences,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The segments of the tokens that were divided, joined in order. Program (i, h): head h of every so many'th token,
    beginning with i.

    parts [partials, HEADS, DIM], part_stats [partials, HEADS, 2] float32. Those of a sequence with N queries begin with
    its first partial, as [segments, HEADS / GROUP, N, GROUP]: so the rows of a program lie side by side.
    out [T, HEADS DIM].
    AHEAD: segments that are read at a time.
    """
    wait_for_earlier_kernel()
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK)
    one = tl.arange(0, 1)
    inside = d < DIM
    for number in range(tl.program_id(0), tl.load(tokens + num_sequences), tl.num_programs(0)):
        sequence = last_of(tokens, num_sequences, number)
        start = tl.load(query_starts + sequence)
        count = tl.load(query_starts + sequence + 1) - start
        context = tl.load(context_lens + sequence)
        query = number - tl.load(tokens + sequence)
        earliest, _ = segments_of(context, count, WINDOW)
        position = context - count + query
        first = position * 0
        if WINDOW > 0:
            first = tl.maximum(position + 1 - WINDOW, 0) // SEGMENT
        end = (position + SEGMENT) // SEGMENT
        own = (tl.load(partials + sequence) - earliest * count) * HEADS
        own += (head // GROUP * count + query) * GROUP + head % GROUP
        top = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        mixed = tl.zeros([BLOCK], tl.float32)
        for begin in range(first, end, AHEAD):
            for step in tl.static_range(AHEAD):
                there = begin + step < end
                place = own + (begin + step) * count * HEADS
                own_top = tl.load(part_stats + place * 2 + one, mask=there & (one >= 0), other=float("-inf"))
                own_total = tl.load(part_stats + place * 2 + 1 + one, mask=there & (one >= 0), other=0.0)
                own_mixed = tl.load(parts + place * DIM + d, mask=there & inside, other=0.0)
                new_top, kept, added = rescale(top, own_top)
                total = tl.fma(total, kept, own_total * added)
                mixed = tl.fma(mixed, tl.broadcast_to(kept, mixed.shape), own_mixed * added)
                top = new_top
        if HAS_SINKS:
            top, kept, added = rescale(top, tl.load(sinks + head + one) * LOG2E)
            total = tl.fma(total, kept, added)
            mixed *= kept
        result = mixed / tl.where(total > 0, total, 1.0)
        to = ((start + query).to(tl.int64) * HEADS + head) * DIM
        tl.store(out + to + d, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rescale(top, own_top):
    """The larger of two maxima, and what sums relative to each are multiplied by."""
    new_top = tl.maximum(top, own_top)
    level = tl.where(new_top == float("-inf"), 0.0, new_top)
    return new_top, tl.exp2(top - level), tl.exp2(own_top - level)
