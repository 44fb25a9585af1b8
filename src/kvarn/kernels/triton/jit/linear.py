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

from kvarn.kernels.triton.jit.elementwise import activate, clamped_swiglu, row_scale

BLOCKS_TOGETHER = tl.constexpr(8)
"""Tiles of so many blocks of rows are neighbours, so that they find a weight in the second cache."""


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x,
    weight,
    scales,
    multipliers,
    zeros,
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
    "8 bits": int8 or fp8 numbers with scales [OUTPUTS] float32; "4 bits": see `_of_group`, STEP is GROUP there.
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
    factors = tl.full([ROWS], 1.0, tl.float32)
    if HAS_NORM:
        for row in range(block * ROWS, tl.minimum(num_rows, block * ROWS + ROWS)):
            factors = tl.where(m == row, row_scale(x + row * X_STRIDE, eps, INPUTS), factors)
    gate = tl.zeros([OUTS, ROWS], tl.float32)
    up = tl.zeros([OUTS, ROWS], tl.float32)
    if APART:
        first_split = tl.program_id(1)
        last_split = first_split + 1
    else:
        first_split = 0
        last_split = SPLITS
    for split in range(first_split, last_split):
        sums, sums_up = sums_of_split(
            x, norm, factors, m, num_rows, weight, scales, multipliers, zeros, n, split,
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
    gate = finished(gate, up, scales, bias, n, OUTPUTS, FORMAT, HAS_BIAS, ACTIVATION, 0.0, 0.0)
    inside = (n < OUTPUTS)[:, None] & (m < num_rows)[None, :]
    to = m.to(tl.int64)[None, :] * OUT_STRIDE + n[:, None]
    if ADDS:
        gate += tl.load(add_to + to, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + to, gate.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums_of_split(
    x, norm, factors, m, num_rows, weight, scales, multipliers, zeros, n, split,
    X_STRIDE: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, SPLIT: tl.constexpr,
    SPLITS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_MULTIPLIERS: tl.constexpr, HAS_NORM: tl.constexpr, GATED: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One chain of products, over the inputs of a split: [OUTS, ROWS] of outputs n and rows m, and, where GATED, of the
    outputs below them. Rows from `num_rows` on count as zeros."""
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    sums_up = tl.zeros([OUTS, ROWS], tl.float32)
    for step in range(0, SPLIT, STEP):
        k = split * SPLIT + step
        if FORMAT == "4 bits":
            low, high = _halves(x, norm, factors, m, k, num_rows, X_STRIDE, INPUTS, GROUP, HAS_NORM, NUMBERS, DOT)
            sums = _of_group(
                sums, low, high, weight, scales, multipliers, zeros, n, k,
                WIDTH, OUTPUTS, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, DOT,
            )  # fmt: skip
            if GATED:
                sums_up = _of_group(
                    sums_up, low, high, weight, scales, multipliers, zeros, n + OUTPUTS, k,
                    WIDTH, 2 * OUTPUTS, GROUP, HAS_ZEROS, HAS_MULTIPLIERS, DOT,
                )  # fmt: skip
        else:
            at = k + tl.arange(0, STEP)
            rows = tl.trans(_inputs(x, norm, factors, m, at, num_rows, X_STRIDE, INPUTS, HAS_NORM, NUMBERS, DOT))
            own = _weights(weight, n, at, WIDTH, OUTPUTS, SPLIT * SPLITS, NUMBERS, DOT)
            sums = tl.dot(own, rows, sums, input_precision="ieee")
            if GATED:
                own = _weights(weight, n + OUTPUTS, at, WIDTH, 2 * OUTPUTS, SPLIT * SPLITS, NUMBERS, DOT)
                sums_up = tl.dot(own, rows, sums_up, input_precision="ieee")
    return sums, sums_up


@triton.jit
def finished(
    gate, up, scales, bias, n, OUTPUTS: tl.constexpr, FORMAT: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, ALPHA: tl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] with the scales of 8-bit weights, the bias, and the activation that joins gate and up."""
    if FORMAT == "8 bits":
        gate *= tl.load(scales + n, mask=n < OUTPUTS, other=0.0)[:, None]
        if ACTIVATION != "":
            up *= tl.load(scales + OUTPUTS + n, mask=n < OUTPUTS, other=0.0)[:, None]
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
def _weights(
    weight, n, at, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, COVERED: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Numbers `at` of rows n of a weight that is plain or of 8 bits: [rows, inputs]."""
    pointers = weight + n.to(tl.int64)[:, None] * WIDTH + at[None, :]
    if COVERED > WIDTH:
        own = tl.load(pointers, mask=(n < OUTPUTS)[:, None] & (at < WIDTH)[None, :], other=0.0)
    else:
        own = tl.load(pointers, mask=(n < OUTPUTS)[:, None], other=0.0)
    return own.to(NUMBERS).to(DOT)


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
def _of_group(
    sums, low, high, weight, scales, multipliers, zeros, n, k,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_MULTIPLIERS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`sums` with the products of one group of 4-bit weights added.

    Byte j of a group holds input j of it and, in its upper half, input j + GROUP / 2. scales [OUTPUTS, WIDTH / GROUP],
    zeros alike (8 where there are none), multipliers [OUTPUTS, WIDTH / 32].
    """
    real = n < OUTPUTS
    n = n.to(tl.int64)
    j = tl.arange(0, GROUP // 2)
    pairs = tl.load(
        weight + n[:, None] * (WIDTH // 2) + (k // 2 + j)[None, :], mask=(real & (k < WIDTH))[:, None], other=0
    )
    at = n * (WIDTH // GROUP) + k // GROUP
    first = (pairs & 15).to(tl.int8)
    second = (pairs >> 4).to(tl.int8)
    if HAS_ZEROS:
        zero = tl.load(zeros + at, mask=real & (k < WIDTH), other=0).to(tl.int8)[:, None]
        first -= zero
        second -= zero
    else:
        first -= 8
        second -= 8
    if HAS_MULTIPLIERS:
        of = multipliers + n[:, None] * (WIDTH // 32) + ((k + j) // 32)[None, :]
        first *= tl.load(of, mask=(real & (k < WIDTH))[:, None], other=0)
        second *= tl.load(of + GROUP // 64, mask=(real & (k < WIDTH))[:, None], other=0)
    products = tl.dot(first.to(DOT), low, input_precision="ieee")
    products = tl.dot(second.to(DOT), high, products, input_precision="ieee")
    scale = tl.load(scales + at, mask=real & (k < WIDTH), other=0.0).to(tl.float32)
    return tl.fma(products, tl.broadcast_to(scale[:, None], products.shape), sums)
