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

from kvarn.kernels.triton.jit.convert import codes, four_converted
from kvarn.kernels.triton.jit.elementwise import activate, clamped_swiglu, row_scale
from kvarn.kernels.triton.jit.fragments import OUTPUTS_TOGETHER, arranged, load_tiles, padded
from kvarn.kernels.triton.jit.overlap import prefetch, prefetch_bytes, wait_for_earlier_kernel

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
    HAS_SUB_SCALES: tl.constexpr,
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
    "8 bits": int8 or fp8 numbers in tiles (see `jit.fragments`) of STEP inputs, with scales [OUTPUTS] float32, those of
    each of gate and up filled up to a multiple of 64; "4 bits": see `_of_group`, whose words are `scales`; STEP is
    GROUP there.
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
    tile, block = place_of(tl.program_id(0), num_tiles, tl.cdiv(num_rows, ROWS))
    n = tile * OUTS + tl.arange(0, OUTS)
    m = block * ROWS + tl.arange(0, ROWS)
    if APART:
        first_split = tl.program_id(1)
        last_split = first_split + 1
    else:
        first_split = 0
        last_split = SPLITS
    if ROWS <= 64:
        _ask_for_first(weight, tile, n, first_split * SPLIT, WIDTH, OUTPUTS, FORMAT, OUTS, STEP, gated)
    wait_for_earlier_kernel()
    factors = tl.full([ROWS], 1.0, tl.float32)
    if HAS_NORM:
        for row in range(block * ROWS, tl.minimum(num_rows, block * ROWS + ROWS)):
            factors = tl.where(m == row, row_scale(x + row * X_STRIDE, eps, INPUTS), factors)
    gate = tl.zeros([OUTS, ROWS], tl.float32)
    up = tl.zeros([OUTS, ROWS], tl.float32)
    for split in range(first_split, last_split):
        sums, sums_up = sums_of_split(
            x, norm, factors, m, num_rows, weight, scales, tile, split,
            X_STRIDE, INPUTS, WIDTH, OUTPUTS, SPLIT, SPLITS, FORMAT, GROUP, HAS_ZEROS, HAS_SUB_SCALES, HAS_NORM,
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
def _ask_for_first(
    weight, tile, n, k, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, FORMAT: tl.constexpr, OUTS: tl.constexpr,
    STEP: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Prefetch what a tile multiplies first, from input k on."""
    if FORMAT == "8 bits" or FORMAT == "4 bits":
        held: tl.constexpr = WIDTH // 2 if FORMAT == "4 bits" else WIDTH
        number = tile.to(tl.int64) * (OUTS // OUTPUTS_TOGETHER)
        for part in tl.static_range(2 if GATED else 1):
            begin = (part * padded(OUTPUTS) + number * OUTPUTS_TOGETHER) * held
            first = begin + k * OUTPUTS_TOGETHER * held // WIDTH
            prefetch_bytes(weight, first, begin + OUTPUTS_TOGETHER * held - 1, 4 * OUTPUTS_TOGETHER)
    else:
        below: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
        prefetch(weight, n, below, WIDTH, k)
        if GATED:
            prefetch(weight, n + OUTPUTS, below, WIDTH, k)


@triton.jit
def sums_of_split(
    x, norm, factors, m, num_rows, weight, scales, tile, split,
    X_STRIDE: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, SPLIT: tl.constexpr,
    SPLITS: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_SUB_SCALES: tl.constexpr, HAS_NORM: tl.constexpr, GATED: tl.constexpr, NUMBERS: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One chain of products, over the inputs of a split: [OUTS, ROWS] of a tile of outputs and rows m, and, where
    GATED, of the outputs below them. Rows from `num_rows` on count as zeros."""
    n = tile * OUTS + tl.arange(0, OUTS)
    above: tl.constexpr = padded(OUTPUTS)
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    sums_up = tl.zeros([OUTS, ROWS], tl.float32)
    scale = None
    scale_up = None
    if GROUP:
        # Asked for a step before they are needed: the compiler does so with larger loads only.
        next_words = _words(scales, n, split * SPLIT, WIDTH, OUTPUTS, GROUP)
        if GATED:
            next_words_up = _words(scales + above * (WIDTH // GROUP), n, split * SPLIT, WIDTH, OUTPUTS, GROUP)
    elif FORMAT != "plain":
        scale = tl.load(scales + n, mask=n < OUTPUTS, other=0.0)[:, None]
        if GATED:
            scale_up = tl.load(scales + above + n, mask=n < OUTPUTS, other=0.0)[:, None]
    for step in range(0, SPLIT, STEP):
        k = split * SPLIT + step
        words = None
        words_up = None
        if GROUP:
            words = next_words
            next_words = _words(scales, n, k + GROUP, WIDTH, OUTPUTS, GROUP)
            if GATED:
                words_up = next_words_up
                next_words_up = _words(scales + above * (WIDTH // GROUP), n, k + GROUP, WIDTH, OUTPUTS, GROUP)
        at = k + tl.arange(0, STEP)
        rows = tl.trans(_inputs(x, norm, factors, m, at, num_rows, X_STRIDE, INPUTS, HAS_NORM, NUMBERS, DOT))
        if FORMAT == "4 bits":
            own = _of_group(weight, words, tile, k, WIDTH, OUTPUTS, GROUP, HAS_ZEROS, HAS_SUB_SCALES, DOT, OUTS)
        elif FORMAT == "8 bits":
            own = _of_step(weight, tile, k, WIDTH, OUTPUTS, NUMBERS, DOT, OUTS, STEP)
        else:
            own = _of_rows(weight, n, at, WIDTH, OUTPUTS, SPLIT * SPLITS, DOT)
        sums = _added(sums, own, _scale(words) if GROUP else scale, rows)
        if GATED:
            if FORMAT == "4 bits":
                own = _of_group(
                    weight + above * (WIDTH // 2), words_up, tile, k,
                    WIDTH, OUTPUTS, GROUP, HAS_ZEROS, HAS_SUB_SCALES, DOT, OUTS,
                )  # fmt: skip
            elif FORMAT == "8 bits":
                own = _of_step(weight + above * WIDTH, tile, k, WIDTH, OUTPUTS, NUMBERS, DOT, OUTS, STEP)
            else:
                own = _of_rows(weight, n + OUTPUTS, at, WIDTH, 2 * OUTPUTS, SPLIT * SPLITS, DOT)
            sums_up = _added(sums_up, own, _scale(words_up) if GROUP else scale_up, rows)
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
def place_of(program, num_tiles: tl.constexpr, num_blocks):
    """The outputs and the rows that a program computes."""
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
def _of_rows(weight, n, at, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, COVERED: tl.constexpr, DOT: tl.constexpr):
    """Inputs `at` of outputs n of a plain weight."""
    pointers = weight + n.to(tl.int64)[:, None] * WIDTH + at[None, :]
    if COVERED > WIDTH:
        own = tl.load(pointers, mask=(n < OUTPUTS)[:, None] & (at < WIDTH)[None, :], other=0.0)
    else:
        own = tl.load(pointers, mask=(n < OUTPUTS)[:, None], other=0.0)
    return own.to(DOT)


@triton.jit
def _of_step(
    weight, tile, k, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, DOT: tl.constexpr,
    OUTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """STEP inputs from k on of the outputs of a tile, of a weight of 8 bits: [OUTS, STEP]."""
    own = load_tiles(weight, tile, k, WIDTH, WIDTH, OUTPUTS, OUTS, STEP)
    return arranged(four_converted(own, NUMBERS, DOT))


@triton.jit
def _added(sums, own, scale, rows):
    """`sums` with the products of a step added, `own` [OUTS, inputs] of the weight. `scale`: None where it is plain.

    Unless it is plain, a step's products are complete before they are scaled and added. Were they a part of the chain,
    the next step's numbers would be converted into registers that a product still reads (seen with Triton 3.6 on an
    H200).
    """
    if scale is None:
        sums = tl.dot(own, rows, sums, input_precision="ieee")
    else:
        products = tl.dot(own, rows, input_precision="ieee")
        sums = tl.fma(products, tl.broadcast_to(scale, products.shape), sums)
    return sums


@triton.jit
def _words(scales, n, k, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr):
    """The words of the group from input k on, of outputs n: see `_of_group`."""
    tile, groups = n // OUTPUTS_TOGETHER, WIDTH // GROUP
    at = (tile.to(tl.int64) * groups + k // GROUP) * OUTPUTS_TOGETHER + n % OUTPUTS_TOGETHER
    return tl.load(scales + at, mask=(n < OUTPUTS) & (k < WIDTH), other=0)


@triton.jit
def _of_group(
    weight, words, tile, k, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_SUB_SCALES: tl.constexpr, DOT: tl.constexpr, OUTS: tl.constexpr,
):  # fmt: skip
    """The scaled sums of the group from input k on, of the outputs of a tile of 4-bit weights: [OUTS, GROUP].

    A byte of a group holds input j of it and, in its upper half, input j + GROUP / 2; bytes of 64 outputs are a tile
    of `jit.fragments`. Of each group of an output there is a word of 32 or 64 bits [OUTPUTS / 64, WIDTH / GROUP, 64]:
    the lowest 16 bits are its scale, a float16; HAS_ZEROS: the next 8 what is subtracted, 8 otherwise; HAS_SUB_SCALES:
    the highest are a sub_scale for each 32 inputs, 8 bits, with 16 added.
    """
    pairs = load_tiles(weight, tile, k, WIDTH, WIDTH // 2, OUTPUTS, OUTS, GROUP)
    first, second = codes(pairs, DOT)
    first, second = arranged(first), arranged(second)
    zero = (128 + (words >> 16 & 255)).to(DOT)[:, None] if HAS_ZEROS else tl.full([1, 1], 136.0, DOT)
    first -= zero
    second -= zero
    if HAS_SUB_SCALES:
        j = tl.arange(0, GROUP // 2)
        first *= _sub_scales(words, 0, j, GROUP, DOT)
        second *= _sub_scales(words, GROUP // 2, j, GROUP, DOT)
    return tl.reshape(tl.permute(tl.join(first, second), [0, 2, 1]), [OUTS, GROUP])


@triton.jit
def _scale(words):
    """[rows, 1] of words [rows]."""
    return words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)[:, None]


@triton.jit
def _sub_scales(words, FIRST: tl.constexpr, j, GROUP: tl.constexpr, DOT: tl.constexpr):
    """Those of inputs FIRST + j of a group, 32 inputs each: [rows, inputs]."""
    lowest: tl.constexpr = words.dtype.primitive_bitwidth - 8 * max(GROUP // 32, 1) + 8 * (FIRST // 32)
    own = _less_16(words >> lowest, DOT)[:, None]
    for part in tl.static_range(1, GROUP // 64):
        own = tl.where((j < 32 * part)[None, :], own, _less_16(words >> (lowest + 8 * part), DOT)[:, None])
    return own


@triton.jit
def _less_16(numbers, DOT: tl.constexpr):
    """The lowest byte, less 16: 31 at most, whose bits behind those of 128 are a bfloat16, as in `convert.codes`."""
    if tl.bfloat16 == DOT:
        result = ((numbers & 255) | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - 144.0
    else:
        result = (numbers & 255).to(DOT) - 16.0
    return result.to(DOT)
