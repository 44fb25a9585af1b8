"""Products of a weight with any number of rows, in one order of sums.

out[m] = activation(weight norm(x[m]) + bias) + add_to[m]

The weight is the left operand of the tensor cores' product and the rows are the right one: 64 outputs by 16 rows fill a
warp group's instruction, which 16 rows by 64 outputs would not. Inputs are cut into `SPLITS` parts of `SPLIT` inputs.
Each part is one chain of products, and parts are summed in order, whether one program computes them all or each is
computed by a program of its own, whose sums the last one to arrive adds. So the bits of a row depend neither on the
number of rows nor on the size of a tile.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.convert import codes, converted
from kvarn.kernels.triton.jit.elementwise import activate, clamped_swiglu, row_scale
from kvarn.kernels.triton.jit.overlap import prefetch, wait_for_earlier_kernel

BLOCKS_TOGETHER = tl.constexpr(8)
"""Tiles of so many blocks of rows are neighbours, so that they find a weight in the second cache."""


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x,
    weight,
    scales,
    norm,
    bias,
    add_to,
    out,
    partials,
    arrivals,
    num_rows,
    eps,
    X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    APART: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_MULTIPLIERS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    NUMBERS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    """One tile of `OUTS` outputs by `ROWS` rows.

    x [M, INPUTS]; weight [OUTPUTS, WIDTH], or with an activation [2 OUTPUTS, WIDTH]: gate above up. FORMAT "plain";
    "8 bits": int8 or fp8 numbers with scales [OUTPUTS] float32; "4 bits": see `_of_group`,
    whose words are `scales`; STEP is GROUP there.
    NUMBERS: the type that inputs are rounded to; DOT: the type that is multiplied. partials: float32, SPLITS tiles
    (twice as many with an activation) for each tile; arrivals: an int32 for each tile, zero before and after. Both are
    used only where splits are computed APART.

    HEAD_STRIDE: not 0 where program_id(2) is a head with a weight of its own: x [M, heads, INPUTS], so many numbers
    from head to head; weight [heads, OUTPUTS, WIDTH], plain; out [M, heads, OUTPUTS].
    """
    if HEAD_STRIDE:
        head = tl.program_id(2).to(tl.int64)
        x += head * HEAD_STRIDE
        weight += head * (OUTPUTS * WIDTH)
        out += head * OUTPUTS
    num_tiles: tl.constexpr = (OUTPUTS + OUTS - 1) // OUTS
    gated: tl.constexpr = ACTIVATION != ""
    tile, block = _place(tl.program_id(0), num_tiles, tl.cdiv(num_rows, ROWS))
    n = tile * OUTS + tl.arange(0, OUTS)
    m = block * ROWS + tl.arange(0, ROWS)
    if APART:
        first_split = tl.program_id(1)
        last_split = first_split + 1
    else:
        first_split = 0
        last_split = SPLITS
    held: tl.constexpr = WIDTH // 2 if FORMAT == "4 bits" else WIDTH
    below: tl.constexpr = 2 * OUTPUTS if gated else OUTPUTS
    if ROWS <= 64:
        start = first_split * SPLIT // 2 if FORMAT == "4 bits" else first_split * SPLIT
        prefetch(weight, n, below, held, start)
        if gated:
            prefetch(weight, n + OUTPUTS, below, held, start)
    wait_for_earlier_kernel()
    factors = tl.full([ROWS], 1.0, tl.float32)
    if HAS_NORM:
        for row in range(block * ROWS, tl.minimum(num_rows, block * ROWS + ROWS)):
            factors = tl.where(m == row, row_scale(x + row * X_STRIDE, eps, INPUTS), factors)
    gate = tl.zeros([OUTS, ROWS], tl.float32)
    up = tl.zeros([OUTS, ROWS], tl.float32)
    for split in range(first_split, last_split):
        sums, sums_up = sums_of_split(
            x, norm, factors, m, num_rows, weight, scales, n, split,
            X_STRIDE, INPUTS, WIDTH, OUTPUTS, SPLIT, SPLITS, FORMAT, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, HAS_NORM,
            gated, NUMBERS, DOT, ROWS, OUTS, STEP,
        )  # fmt: skip
        gate += sums
        up += sums_up
    if APART:
        parts: tl.constexpr = 2 if gated else 1
        area: tl.constexpr = OUTS * ROWS
        place = tl.arange(0, OUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        of_tile = partials + tl.program_id(0).to(tl.int64) * (SPLITS * parts * area)
        tl.store(of_tile + first_split * (parts * area) + place, gate)
        if gated:
            tl.store(of_tile + first_split * (parts * area) + area + place, up)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tl.program_id(0), 1, sem="acq_rel")
        if arrived != SPLITS - 1:
            return
        gate = tl.zeros([OUTS, ROWS], tl.float32)
        up = tl.zeros([OUTS, ROWS], tl.float32)
        for split in range(0, SPLITS):
            gate += tl.load(of_tile + split * (parts * area) + place, cache_modifier=".cg")
            if gated:
                up += tl.load(of_tile + split * (parts * area) + area + place, cache_modifier=".cg")
        tl.store(arrivals + tl.program_id(0), 0)
    gate = finished(gate, up, bias, n, OUTPUTS, HAS_BIAS, ACTIVATION, 0.0, 0.0)
    inside = (n < OUTPUTS)[:, None] & (m < num_rows)[None, :]
    to = m.to(tl.int64)[None, :] * OUT_STRIDE + n[:, None]
    if ADDS:
        gate += tl.load(add_to + to, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + to, gate.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums_of_split(
    x, norm, factors, m, num_rows, weight, scales, n, split,
    X_STRIDE: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, SPLIT: tl.constexpr,
    SPLITS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_MULTIPLIERS: tl.constexpr, HAS_NORM: tl.constexpr, GATED: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One chain of products, over the inputs of a split: [OUTS, ROWS] of outputs n and rows m, and, where GATED, of the
    outputs below them. Rows from `num_rows` on count as zeros."""
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    sums_up = tl.zeros([OUTS, ROWS], tl.float32)
    grouped: tl.constexpr = FORMAT == "4 bits" or FORMAT == "groups"
    scale = None
    scale_up = None
    if grouped:
        # Asked for a step before they are needed: the compiler does so with larger loads only.
        next_words = _words(scales, n, split * SPLIT, WIDTH, OUTPUTS, GROUP)
        if GATED:
            next_words_up = _words(scales, n + OUTPUTS, split * SPLIT, WIDTH, 2 * OUTPUTS, GROUP)
    elif FORMAT == "8 bits":
        scale = tl.load(scales + n, mask=n < OUTPUTS, other=0.0)[:, None]
        if GATED:
            scale_up = tl.load(scales + OUTPUTS + n, mask=n < OUTPUTS, other=0.0)[:, None]
    for step in range(0, SPLIT, STEP):
        k = split * SPLIT + step
        if grouped:
            words = next_words
            next_words = _words(scales, n, k + GROUP, WIDTH, OUTPUTS, GROUP)
            if GATED:
                words_up = next_words_up
                next_words_up = _words(scales, n + OUTPUTS, k + GROUP, WIDTH, 2 * OUTPUTS, GROUP)
        if FORMAT == "4 bits":
            low, high = _halves(x, norm, factors, m, k, num_rows, X_STRIDE, INPUTS, GROUP, HAS_NORM, NUMBERS, DOT)
            sums = _of_group(
                sums, low, high, weight, words, n, k, WIDTH, OUTPUTS, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, DOT
            )
            if GATED:
                sums_up = _of_group(
                    sums_up, low, high, weight, words_up, n + OUTPUTS, k,
                    WIDTH, 2 * OUTPUTS, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, DOT,
                )  # fmt: skip
        else:
            at = k + tl.arange(0, STEP)
            rows = tl.trans(_inputs(x, norm, factors, m, at, num_rows, X_STRIDE, INPUTS, HAS_NORM, NUMBERS, DOT))
            own_scale = _scale(words) if grouped else scale
            sums = _added(sums, weight, own_scale, rows, n, at, WIDTH, OUTPUTS, SPLIT * SPLITS, FORMAT, NUMBERS, DOT)
            if GATED:
                own_scale = _scale(words_up) if grouped else scale_up
                sums_up = _added(
                    sums_up, weight, own_scale, rows, n + OUTPUTS, at,
                    WIDTH, 2 * OUTPUTS, SPLIT * SPLITS, FORMAT, NUMBERS, DOT,
                )  # fmt: skip
    return sums, sums_up


@triton.jit
def finished(
    gate, up, bias, n, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] with the bias, and the activation that joins gate and up."""
    if HAS_BIAS:
        gate += tl.load(bias + n, mask=n < OUTPUTS, other=0.0).to(tl.float32)[:, None]
        if ACTIVATION != "":
            up += tl.load(bias + OUTPUTS + n, mask=n < OUTPUTS, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION == "clamped_swiglu":
        gate = clamped_swiglu(gate, up, LIMIT, ALPHA)
    elif ACTIVATION != "":
        gate = activate(gate, ACTIVATION) * up
    return gate


@triton.jit
def _place(program, num_tiles: tl.constexpr, num_blocks):
    """Which outputs and which rows a program computes."""
    in_group = BLOCKS_TOGETHER * num_tiles
    first = program // in_group * BLOCKS_TOGETHER
    size = tl.minimum(num_blocks - first, BLOCKS_TOGETHER)
    inner = program % in_group
    return inner // size, first + inner % size


@triton.jit
def _inputs(
    x, norm, factors, m, at, num_rows, X_STRIDE: tl.constexpr, INPUTS: tl.constexpr, HAS_NORM: tl.constexpr,
    NUMBERS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Inputs `at` of rows m, normed: [rows, inputs]."""
    inside = (m < num_rows)[:, None] & (at < INPUTS)[None, :]
    rows = tl.load(x + m.to(tl.int64)[:, None] * X_STRIDE + at[None, :], mask=inside, other=0.0)
    if HAS_NORM:
        weight = tl.load(norm + at, mask=at < INPUTS, other=0.0)
        rows = rows.to(tl.float32) * factors[:, None] * weight[None, :]
    return rows.to(NUMBERS).to(DOT)


@triton.jit
def _added(
    sums, weight, scale, rows, n, at, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, COVERED: tl.constexpr,
    FORMAT: tl.constexpr, NUMBERS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`sums` with the products of inputs `at` and rows n of a weight added, not of one of 4 bits.

    Unless it is plain, a step's products are complete before they are scaled and added. Were they a part of the chain,
    the next step's numbers would be converted into registers that a product still reads (seen with Triton 3.6 on an
    H200).
    """
    pointers = weight + n.to(tl.int64)[:, None] * WIDTH + at[None, :]
    if COVERED > WIDTH:
        own = tl.load(pointers, mask=(n < OUTPUTS)[:, None] & (at < WIDTH)[None, :], other=0.0)
    else:
        own = tl.load(pointers, mask=(n < OUTPUTS)[:, None], other=0.0)
    own = converted(own, NUMBERS, DOT)
    if FORMAT == "plain":
        sums = tl.dot(own, rows, sums, input_precision="ieee")
    else:
        products = tl.dot(own, rows, input_precision="ieee")
        sums = tl.fma(products, tl.broadcast_to(scale, products.shape), sums)
    return sums


@triton.jit
def _halves(
    x, norm, factors, m, k, num_rows, X_STRIDE: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr,
    HAS_NORM: tl.constexpr, NUMBERS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The two halves of a group of inputs from k on, each [inputs, rows]."""
    at = k + tl.arange(0, GROUP // 2)
    low = _inputs(x, norm, factors, m, at, num_rows, X_STRIDE, INPUTS, HAS_NORM, NUMBERS, DOT)
    high = _inputs(x, norm, factors, m, at + GROUP // 2, num_rows, X_STRIDE, INPUTS, HAS_NORM, NUMBERS, DOT)
    return tl.trans(low), tl.trans(high)


@triton.jit
def _words(scales, n, k, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr):
    """What belongs to the group from input k on, of outputs n: see `_of_group`."""
    at = n.to(tl.int64) * (WIDTH // GROUP) + k // GROUP
    return tl.load(scales + at, mask=(n < OUTPUTS) & (k < WIDTH), other=0)


@triton.jit
def _of_group(
    sums, low, high, weight, words, n, k,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_MULTIPLIERS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`sums` with the products of one group of 4-bit weights added.

    Byte j of a group holds input j of it and, in its upper half, input j + GROUP / 2. Of each group of an output there
    is a word of 32 or 64 bits [OUTPUTS, WIDTH / GROUP]: the lowest 16 bits are its scale, a float16; HAS_ZEROS: the
    next 8 what is subtracted, 8 otherwise; HAS_MULTIPLIERS: the highest are a multiplier of 8 bits for each 32 inputs.
    """
    j = tl.arange(0, GROUP // 2)
    inside = ((n < OUTPUTS) & (k < WIDTH))[:, None]
    pairs = tl.load(weight + n.to(tl.int64)[:, None] * (WIDTH // 2) + (k // 2 + j)[None, :], mask=inside, other=0)
    first, second = _whole_numbers(pairs, words, j, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, DOT)
    products = tl.dot(first, low, input_precision="ieee")
    products = tl.dot(second, high, products, input_precision="ieee")
    return tl.fma(products, tl.broadcast_to(_scale(words), products.shape), sums)


@triton.jit
def _scale(words):
    """[rows, 1] of words [rows]."""
    return words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)[:, None]


@triton.jit
def _whole_numbers(
    pairs, words, j, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MULTIPLIERS: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """What is scaled: the lower and the upper halves of bytes j of groups, less the zero, times the multiplier."""
    first, second = codes(pairs, DOT)
    zero = (128 + (words >> 16 & 255)).to(DOT)[:, None] if HAS_ZEROS else tl.full([1, 1], 136.0, DOT)
    first -= zero
    second -= zero
    if HAS_MULTIPLIERS:
        first *= _multipliers(words, 0, j, GROUP, DOT)
        second *= _multipliers(words, GROUP // 2, j, GROUP, DOT)
    return first, second


@triton.jit
def _multipliers(words, FIRST: tl.constexpr, j, GROUP: tl.constexpr, DOT: tl.constexpr):
    """Those of inputs FIRST + j of a group, 32 inputs each: [rows, inputs]."""
    lowest: tl.constexpr = words.dtype.primitive_bitwidth - 8 * max(GROUP // 32, 1) + 8 * (FIRST // 32)
    own = (words >> lowest).to(tl.int8).to(DOT)[:, None]
    for part in tl.static_range(1, GROUP // 64):
        own = tl.where((j < 32 * part)[None, :], own, (words >> (lowest + 8 * part)).to(tl.int8).to(DOT)[:, None])
    return own


@triton.jit
def convert(
    weight,
    scales,
    out,
    WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_MULTIPLIERS: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A part of one row of a quantized weight as out [outputs, WIDTH] bfloat16: what is scaled, without loss.

    `multiply` reads it in the place of the weight, as FORMAT "8 bits", or "groups" in the place of "4 bits". BLOCK:
    numbers, or groups.
    """
    row = tl.program_id(0).to(tl.int64)
    if FORMAT == "4 bits":
        group = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = group < WIDTH // GROUP
        j = tl.arange(0, GROUP // 2)
        at = group[:, None] * (GROUP // 2) + j[None, :]
        pairs = tl.load(weight + row * (WIDTH // 2) + at, mask=inside[:, None], other=0)
        words = tl.load(scales + row * (WIDTH // GROUP) + group, mask=inside, other=0)
        first, second = _whole_numbers(pairs, words, j, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, DOT)
        to = out + row * WIDTH + group[:, None] * GROUP + j[None, :]
        tl.store(to, first.to(tl.bfloat16), mask=inside[:, None])
        tl.store(to + GROUP // 2, second.to(tl.bfloat16), mask=inside[:, None])
    else:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        numbers = tl.load(weight + row * WIDTH + at, mask=at < WIDTH, other=0.0)
        tl.store(out + row * WIDTH + at, converted(numbers, DOT, DOT).to(tl.bfloat16), mask=at < WIDTH)
