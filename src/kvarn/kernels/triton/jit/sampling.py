"""Tokens from logits: the definition of `kvarn.kernels.sampling` without sorting.

Weights are whole numbers, so their sums in float64 are exact in any order. Three kernels, one after the other:

    survey   (row, split)   sum and number of a split's weights above each of 16 limits, powers of 8
    gather   (row, split)   with top-k or top-p: the tokens above the limit that leaves enough of them, in a list
    draw     (row)          the token: of the list, or of the split that holds it where all tokens are kept

In the list the lightest weight that is kept is found by a search among the bits of a float32, which are ordered as
positive numbers are: each pass tries several limits at once. A list that is full is not used: then all tokens are.
"""

import triton
import triton.language as tl

BELOW_ONE = tl.constexpr(0x3F7FFFFF)
"""Bits of the largest float32 below 1, the lightest weight but 0."""
LIMITS = tl.constexpr(8)
"""Limits that one pass of a search tries."""
LEVELS = tl.constexpr(16)
"""Limits of the survey: the largest weight divided by 8, 64, ...; the last is 0."""


@triton.jit
def most_likely(logits, tokens, maxima, STRIDE: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit of a row and its lowest id; of a row that holds NaN, the first NaN."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for first in range(0, VOCAB, BLOCK):
        own = tl.load(logits + row * STRIDE + first + at, mask=first + at < VOCAB, other=float("-inf"))
        better = (own > best) | ((own != own) & (best == best))
        best = tl.where(better, own, best)
        where = tl.where(better, first + at, where)
    broken = best != best
    any_broken = tl.max(broken.to(tl.int32), 0) > 0
    top = tl.max(tl.where(broken, float("-inf"), best), 0)
    chosen = tl.where(any_broken, broken, best == top)
    token = tl.min(tl.where(chosen, where, VOCAB), 0)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(maxima + row, tl.load(logits + row * STRIDE + token))


@triton.jit
def mask_rows(logits, rows, words, STRIDE: tl.constexpr, WORDS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Tokens whose bit is not set become minus infinity. words [R, WORDS] int32."""
    row = tl.load(rows + tl.program_id(0))
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < VOCAB
    word = tl.load(words + tl.program_id(0).to(tl.int64) * WORDS + at // 32, mask=inside, other=-1)
    banned = ((word >> (at % 32)) & 1) == 0
    tl.store(logits + row * STRIDE + at, float("-inf"), mask=inside & banned)


@triton.jit
def survey(
    logits, rows, row_max, temperatures, top_ks, top_ps, min_ps, sums, counts,
    STRIDE: tl.constexpr, VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums [R, splits, LEVELS] float64 and counts (int32) of a split's weights above each limit; of rows without top-k
    and top-p above the last one only."""
    program = tl.program_id(0)
    row = logits + tl.load(rows + program).to(tl.int64) * STRIDE
    least = tl.load(min_ps + program) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weights = _weights(row, at, tl.load(row_max + program), tl.load(temperatures + program), least, VOCAB, UNIT)
    out = (program * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * LEVELS
    filtered = (tl.load(top_ks + program) > 0) | (tl.load(top_ps + program) < 1.0)
    for level in range(tl.where(filtered, 0, LEVELS - 1), LEVELS):
        above = weights > _level(level, UNIT)
        tl.store(sums + out + level, tl.sum(tl.where(above, weights, 0.0).to(tl.float64), 0))
        tl.store(counts + out + level, tl.sum(above.to(tl.int32), 0))


@triton.jit
def gather(
    logits, rows, row_max, temperatures, top_ks, top_ps, min_ps, sums, counts, listed, ids, lengths,
    STRIDE: tl.constexpr, VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    TABLE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Weights and ids [R, CAPACITY] of the tokens that top-k or top-p may keep, in the order of ids, and their numbers;
    a number above CAPACITY where they did not fit. TABLE: SPLITS, or the next power of two."""
    program = tl.program_id(0)
    split = tl.program_id(1)
    top_k = tl.load(top_ks + program)
    top_p = tl.load(top_ps + program)
    if (top_k > 0) | (top_p < 1.0):
        splits = tl.arange(0, TABLE)
        levels = tl.arange(0, LEVELS)
        at = (program * SPLITS + splits).to(tl.int64)[:, None] * LEVELS + levels[None, :]
        inside = (splits < SPLITS)[:, None]
        numbers = tl.load(counts + at, mask=inside, other=0)
        masses = tl.sum(tl.load(sums + at, mask=inside, other=0.0), 0)
        by_mass = masses >= top_p * tl.max(masses, 0)
        by_number = tl.sum(numbers, 0) >= top_k
        enough = tl.where(top_k > 0, by_number, by_mass)
        level = tl.min(tl.where(enough, levels, LEVELS - 1), 0)
        in_splits = tl.sum(tl.where((levels == level)[None, :], numbers, 0), 1)
        length = tl.sum(in_splits, 0)
        if split == 0:
            tl.store(lengths + program, length)
        if length <= CAPACITY:
            row = logits + tl.load(rows + program).to(tl.int64) * STRIDE
            least = tl.load(min_ps + program) * UNIT
            tokens = split * BLOCK + tl.arange(0, BLOCK)
            peak = tl.load(row_max + program)
            weights = _weights(row, tokens, peak, tl.load(temperatures + program), least, VOCAB, UNIT)
            kept = weights > _level(level, UNIT)
            before = tl.sum(tl.where(splits < split, in_splits, 0), 0)
            place = program.to(tl.int64) * CAPACITY + before + tl.cumsum(kept.to(tl.int32), 0) - 1
            tl.store(listed + place, weights, mask=kept)
            tl.store(ids + place, tokens, mask=kept)


@triton.jit
def draw(
    logits, rows, row_max, temperatures, top_ks, top_ps, min_ps, uniforms, sums, listed, ids, lengths, tokens,
    STRIDE: tl.constexpr, VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    TABLE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Draw one row's token. UNIT: the weight of the most likely one."""
    program = tl.program_id(0)
    row = logits + tl.load(rows + program).to(tl.int64) * STRIDE
    peak = tl.load(row_max + program)
    temperature = tl.load(temperatures + program)
    top_k = tl.load(top_ks + program)
    top_p = tl.load(top_ps + program)
    least = tl.load(min_ps + program) * UNIT
    uniform = tl.load(uniforms + program)
    splits = tl.arange(0, TABLE)
    at = (program * SPLITS + splits).to(tl.int64) * LEVELS + LEVELS - 1
    masses = tl.load(sums + at, mask=splits < SPLITS, other=0.0)
    total = tl.sum(masses, 0)
    if (top_k > 0) | (top_p < 1.0):
        length = tl.load(lengths + program)
        if length <= CAPACITY:
            own = program.to(tl.int64) * CAPACITY
            place = _of_heaviest(
                listed + own, peak, temperature, least, total, top_k, top_p, uniform, length, UNIT, BLOCK, True
            )
            token = tl.load(ids + own + place)
        else:
            token = _of_heaviest(row, peak, temperature, least, total, top_k, top_p, uniform, VOCAB, UNIT, BLOCK, False)
    else:
        # The first token at which the weights, summed in the order of ids, exceed the target.
        target = uniform * total
        passed = (splits < SPLITS) & (tl.cumsum(masses, 0) <= target)
        split = tl.minimum(tl.sum(passed.to(tl.int32), 0), SPLITS - 1)
        before = tl.sum(tl.where(splits < split, masses, 0.0), 0)
        weights = _weights(row, split * BLOCK + tl.arange(0, BLOCK), peak, temperature, least, VOCAB, UNIT)
        ends = before + tl.cumsum(weights.to(tl.float64), 0)
        token = tl.minimum(split * BLOCK + tl.sum((ends <= target).to(tl.int32), 0), VOCAB - 1)
    tl.store(tokens + program, token.to(tl.int64))


@triton.jit
def _level(level, UNIT: tl.constexpr):
    """The limit of a level of the survey, as a float32: exact, since it is a power of two."""
    bits = tl.full([], UNIT, tl.float32).to(tl.int32, bitcast=True) - 3 * (level + 1) * 8388608
    return tl.where(level < LEVELS - 1, bits, 0).to(tl.float32, bitcast=True)


@triton.jit
def _weights(row, at, peak, temperature, least, size, UNIT: tl.constexpr):
    logits = tl.load(row + at, mask=at < size, other=float("-inf"))
    weights = tl.exp((logits - peak) / temperature) * UNIT
    # Adding so much leaves no room for a fraction; larger numbers have none.
    weights = tl.where(weights < 4194304.0, (weights + 12582912.0) - 12582912.0, weights)
    return tl.where(weights < least, 0.0, weights)


@triton.jit
def _read(row, at, peak, temperature, least, size, UNIT: tl.constexpr, LISTED: tl.constexpr):
    """Weights at some places of a list of `size` weights (LISTED), or of a row of as many logits."""
    if LISTED:
        weights = tl.load(row + at, mask=at < size, other=0.0)
    else:
        weights = _weights(row, at, peak, temperature, least, size, UNIT)
    return weights


@triton.jit
def _heavier(row, peak, temperature, least, bits, size, UNIT: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr):
    """Sum and number of the weights above the one with these bits."""
    limit = (tl.full([1], 1, tl.int32) * bits).to(tl.float32, bitcast=True)
    sums = tl.zeros([BLOCK], tl.float64)
    counts = tl.zeros([BLOCK], tl.int32)
    for first in range(0, size, BLOCK):
        weights = _read(row, first + tl.arange(0, BLOCK), peak, temperature, least, size, UNIT, LISTED)
        above = weights > limit
        sums += tl.where(above, weights, 0.0).to(tl.float64)
        counts += above.to(tl.int32)
    return tl.sum(sums, 0), tl.sum(counts, 0)


@triton.jit
def _of_heaviest(
    row, peak, temperature, least, total, top_k, top_p, uniform,
    size, UNIT: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """A token of those that top-k and top-p keep, in the order (weight descending, id ascending)."""
    bits = tl.full([], 0, tl.int32)
    mass = total
    most = size + tl.zeros([], tl.int64)
    if top_k > 0:
        # The lightest weight above which there are fewer than k.
        bits = _search(row, peak, temperature, least, bits, top_k, True, False, size, UNIT, BLOCK, LISTED)
        sums, count = _heavier(row, peak, temperature, least, bits, size, UNIT, BLOCK, LISTED)
        most = top_k - count
        mass = sums + tl.where(bits > 0, most, 0).to(tl.float64) * _value(bits)
    # The lightest one, from there on, above which less than the share lies.
    limit = top_p * mass
    lightest = _search(row, peak, temperature, least, bits, limit, False, False, size, UNIT, BLOCK, LISTED)
    before, _ = _heavier(row, peak, temperature, least, lightest, size, UNIT, BLOCK, LISTED)
    of_lightest = tl.where(lightest > 0, tl.ceil((limit - before) / tl.maximum(_value(lightest), 1.0)), 0.0)
    of_lightest = tl.where(lightest == bits, tl.minimum(of_lightest, most.to(tl.float64)), of_lightest)
    # The lightest one above which no more than the target lies: the token has it.
    target = uniform * (before + of_lightest * _value(lightest))
    found = _search(row, peak, temperature, least, lightest, target, False, True, size, UNIT, BLOCK, LISTED)
    sums, _ = _heavier(row, peak, temperature, least, found, size, UNIT, BLOCK, LISTED)
    rank = tl.floor((target - sums) / tl.maximum(_value(found), 1.0))
    rank = tl.where(found == lightest, tl.minimum(rank, tl.maximum(of_lightest - 1.0, 0.0)), rank)
    return _of_equals(row, peak, temperature, least, found, rank.to(tl.int32), size, UNIT, BLOCK, LISTED)


@triton.jit
def _search(
    row, peak, temperature, least, bits, bound, COUNTS: tl.constexpr, EQUAL: tl.constexpr,
    size, UNIT: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """The lowest bits, from `bits` on, of a weight above which the number (COUNTS) or the sum of weights is less than
    the bound; EQUAL: or the bound. Each pass leaves a ninth of what may be it."""
    low = tl.maximum(bits, BELOW_ONE)
    high = tl.maximum(tl.full([], UNIT, tl.float32).to(tl.int32, bitcast=True), low)
    number = tl.arange(0, LIMITS)
    while low < high:
        step = (high - low + LIMITS) // (LIMITS + 1)
        tried = tl.minimum(low + (number + 1) * step - 1, high - 1)
        above = _above(row, peak, temperature, least, tried, COUNTS, size, UNIT, BLOCK, LISTED)
        few = above < bound
        if EQUAL:
            few = above <= bound
        high = tl.min(tl.where(few, tried, high), 0)
        low = tl.max(tl.where(few, low, tried + 1), 0)
    return tl.where(low == BELOW_ONE, 0, low)


@triton.jit
def _above(
    row, peak, temperature, least, bits, COUNTS: tl.constexpr, size, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """[LIMITS]: the number (COUNTS) or the sum of the weights above the ones with these bits."""
    columns: tl.constexpr = BLOCK // 4 if BLOCK >= 64 else BLOCK
    limits = bits.to(tl.float32, bitcast=True)[None, None, :]
    kind: tl.constexpr = tl.int32 if COUNTS else tl.float64
    found = tl.zeros([columns, LIMITS], kind)
    # Neighbouring rows lie in one thread, which adds them up by itself.
    at = tl.arange(0, BLOCK // columns)[:, None] * columns + tl.arange(0, columns)[None, :]
    for first in range(0, size, BLOCK):
        weights = _read(row, first + at, peak, temperature, least, size, UNIT, LISTED)[:, :, None]
        own = tl.where(weights > limits, 1 if COUNTS else weights.to(tl.float64), 0)
        found += tl.sum(own.to(kind), 0)
    return tl.sum(found, 0)


@triton.jit
def _value(bits):
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _of_equals(
    row, peak, temperature, least, bits, rank, size, UNIT: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr
):
    """The token number `rank`, in the order of ids, among those whose weight has these bits."""
    value = tl.full([1], 1, tl.int32) * bits
    weight = value.to(tl.float32, bitcast=True)
    before = tl.full([], 0, tl.int32)
    token = tl.full([], 0, tl.int32)
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        equal = (_read(row, at, peak, temperature, least, size, UNIT, LISTED) == weight).to(tl.int32)
        place = before + tl.cumsum(equal, 0)
        token += tl.sum(tl.where((equal > 0) & (place == rank + 1), at, 0), 0)
        before += tl.sum(equal, 0)
    return token
