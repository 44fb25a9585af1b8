"""Tokens from logits, one program a row: the definition of `kvarn.kernels.sampling` without sorting.

Weights are whole numbers, so their sums in float64 are exact in any order. Where top-k or top-p ask for the heaviest
tokens, the lightest weight that is kept is found by a search among the bits of a float32, which are ordered as positive
numbers are: each pass over the vocabulary tries several limits at once.
"""

import triton
import triton.language as tl

BELOW_ONE = tl.constexpr(0x3F7FFFFF)
"""Bits of the largest float32 below 1, the lightest weight but 0."""
LIMITS = tl.constexpr(8)
"""That are tried in one pass."""


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
def draw(
    logits,
    rows,
    row_max,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    tokens,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw one row's token. UNIT: the weight of the most likely one."""
    program = tl.program_id(0)
    row = logits + tl.load(rows + program).to(tl.int64) * STRIDE
    peak = tl.load(row_max + program)
    temperature = tl.load(temperatures + program)
    top_k = tl.load(top_ks + program)
    top_p = tl.load(top_ps + program)
    least = tl.load(min_ps + program) * UNIT
    uniform = tl.load(uniforms + program)
    total, _ = _heavier(row, peak, temperature, least, 0, VOCAB, UNIT, BLOCK)
    if (top_k > 0) | (top_p < 1.0):
        token = _of_heaviest(row, peak, temperature, least, total, top_k, top_p, uniform, VOCAB, UNIT, BLOCK)
    else:
        token = _by_id(row, peak, temperature, least, uniform * total, VOCAB, UNIT, BLOCK)
    tl.store(tokens + program, token.to(tl.int64))


@triton.jit
def _weights(row, at, peak, temperature, least, VOCAB: tl.constexpr, UNIT: tl.constexpr):
    logits = tl.load(row + at, mask=at < VOCAB, other=float("-inf"))
    weights = tl.exp((logits - peak) / temperature) * UNIT
    # Adding so much leaves no room for a fraction; larger numbers have none.
    weights = tl.where(weights < 4194304.0, (weights + 12582912.0) - 12582912.0, weights)
    return tl.where(weights < least, 0.0, weights)


@triton.jit
def _heavier(row, peak, temperature, least, bits, VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """Sum and number of the weights above the one with these bits."""
    limit = (tl.full([1], 1, tl.int32) * bits).to(tl.float32, bitcast=True)
    sums = tl.zeros([BLOCK], tl.float64)
    counts = tl.zeros([BLOCK], tl.int32)
    for first in range(0, VOCAB, BLOCK):
        weights = _weights(row, first + tl.arange(0, BLOCK), peak, temperature, least, VOCAB, UNIT)
        above = weights > limit
        sums += tl.where(above, weights, 0.0).to(tl.float64)
        counts += above.to(tl.int32)
    return tl.sum(sums, 0), tl.sum(counts, 0)


@triton.jit
def _by_id(row, peak, temperature, least, target, VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """The first token at which the weights, summed in the order of ids, exceed the target."""
    before = tl.full([], 0.0, tl.float64)
    token = tl.full([], 0, tl.int32)
    for first in range(0, VOCAB, BLOCK):
        weights = _weights(row, first + tl.arange(0, BLOCK), peak, temperature, least, VOCAB, UNIT).to(tl.float64)
        ends = before + tl.cumsum(weights, 0)
        token += tl.sum((ends <= target).to(tl.int32), 0)
        before += tl.sum(weights, 0)
    return tl.minimum(token, VOCAB - 1)


@triton.jit
def _of_heaviest(
    row, peak, temperature, least, total, top_k, top_p, uniform,
    VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token of those that top-k and top-p keep, in the order (weight descending, id ascending)."""
    bits = tl.full([], 0, tl.int32)
    mass = total
    most = tl.full([], VOCAB, tl.int64)
    if top_k > 0:
        # The lightest weight above which there are fewer than k.
        bits = _search(row, peak, temperature, least, bits, top_k, True, False, VOCAB, UNIT, BLOCK)
        sums, count = _heavier(row, peak, temperature, least, bits, VOCAB, UNIT, BLOCK)
        most = top_k - count
        mass = sums + tl.where(bits > 0, most, 0).to(tl.float64) * _value(bits)
    # The lightest one, from there on, above which less than the share lies.
    limit = top_p * mass
    lightest = _search(row, peak, temperature, least, bits, limit, False, False, VOCAB, UNIT, BLOCK)
    before, _ = _heavier(row, peak, temperature, least, lightest, VOCAB, UNIT, BLOCK)
    of_lightest = tl.where(lightest > 0, tl.ceil((limit - before) / tl.maximum(_value(lightest), 1.0)), 0.0)
    of_lightest = tl.where(lightest == bits, tl.minimum(of_lightest, most.to(tl.float64)), of_lightest)
    # The lightest one above which no more than the target lies: the token has it.
    target = uniform * (before + of_lightest * _value(lightest))
    found = _search(row, peak, temperature, least, lightest, target, False, True, VOCAB, UNIT, BLOCK)
    sums, _ = _heavier(row, peak, temperature, least, found, VOCAB, UNIT, BLOCK)
    rank = tl.floor((target - sums) / tl.maximum(_value(found), 1.0))
    rank = tl.where(found == lightest, tl.minimum(rank, tl.maximum(of_lightest - 1.0, 0.0)), rank)
    return _of_equals(row, peak, temperature, least, found, rank.to(tl.int32), VOCAB, UNIT, BLOCK)


@triton.jit
def _search(
    row, peak, temperature, least, bits, bound, COUNTS: tl.constexpr, EQUAL: tl.constexpr,
    VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The lowest bits, from `bits` on, of a weight above which the number (COUNTS) or the sum of weights is less than
    the bound; EQUAL: or the bound. Each pass leaves a ninth of what may be it."""
    low = tl.maximum(bits, BELOW_ONE)
    high = tl.maximum(tl.full([], UNIT, tl.float32).to(tl.int32, bitcast=True), low)
    number = tl.arange(0, LIMITS)
    while low < high:
        step = (high - low + LIMITS) // (LIMITS + 1)
        tried = tl.minimum(low + (number + 1) * step - 1, high - 1)
        above = _above(row, peak, temperature, least, tried, COUNTS, VOCAB, UNIT, BLOCK)
        few = above < bound
        if EQUAL:
            few = above <= bound
        high = tl.min(tl.where(few, tried, high), 0)
        low = tl.max(tl.where(few, low, tried + 1), 0)
    return tl.where(low == BELOW_ONE, 0, low)


@triton.jit
def _above(
    row, peak, temperature, least, bits, COUNTS: tl.constexpr, VOCAB: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """[LIMITS]: the number (COUNTS) or the sum of the weights above the ones with these bits."""
    columns: tl.constexpr = BLOCK // 4 if BLOCK >= 64 else BLOCK
    limits = bits.to(tl.float32, bitcast=True)[None, None, :]
    kind: tl.constexpr = tl.int32 if COUNTS else tl.float64
    found = tl.zeros([columns, LIMITS], kind)
    # Neighbouring rows lie in one thread, which adds them up by itself.
    at = tl.arange(0, BLOCK // columns)[:, None] * columns + tl.arange(0, columns)[None, :]
    for first in range(0, VOCAB, BLOCK):
        weights = _weights(row, first + at, peak, temperature, least, VOCAB, UNIT)[:, :, None]
        own = tl.where(weights > limits, 1 if COUNTS else weights.to(tl.float64), 0)
        found += tl.sum(own.to(kind), 0)
    return tl.sum(found, 0)


@triton.jit
def _value(bits):
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _of_equals(row, peak, temperature, least, bits, rank, VOCAB: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """Of the tokens whose weight has these bits, in the order of ids, number `rank`."""
    value = tl.full([1], 1, tl.int32) * bits
    weight = value.to(tl.float32, bitcast=True)
    before = tl.full([], 0, tl.int32)
    token = tl.full([], 0, tl.int32)
    for first in range(0, VOCAB, BLOCK):
        at = first + tl.arange(0, BLOCK)
        equal = (_weights(row, at, peak, temperature, least, VOCAB, UNIT) == weight).to(tl.int32)
        place = before + tl.cumsum(equal, 0)
        token += tl.sum(tl.where((equal > 0) & (place == rank + 1), at, 0), 0)
        before += tl.sum(equal, 0)
    return token
