"""Products of plain weights with many rows: large tiles that the copy engine brings and takes away (TMA).

The same chains of sums as `jit.linear.multiply`, which has what a product is: here a program computes all splits of a
tile, one after the other, and then its next tile. A step's inputs of a weight and of rows are one request each, by one
thread, so that registers hold little but sums: a tile can be twice as large, and read half as much from the second
cache. Rows and outputs that do not fill a tile are the copy engine's concern: it reads zeros there and writes nothing.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.linear import finished, place_of

CHUNK = tl.constexpr(64)
"""Rows that are finished and written at a time: their way to the copy engine leads through shared memory."""


@triton.jit(do_not_specialize=["num_rows"])
def multiply_many(
    x,
    weight,
    bias,
    add_to,
    out,
    num_rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Every so many'th tile of `OUTS` outputs by `ROWS` rows.

    Descriptors, with the blocks that are copied at a time: x [M, INPUTS] of [ROWS, STEP]; weight [OUTPUTS, INPUTS], or
    with an activation [2 OUTPUTS, INPUTS], gate above up, of [OUTS, STEP]; add_to and out [M, OUTPUTS] of
    [CHUNK, OUTS]. The rest is as in `jit.linear.multiply`.
    """
    num_tiles: tl.constexpr = (OUTPUTS + OUTS - 1) // OUTS
    num_blocks = tl.cdiv(num_rows, ROWS)
    for program in range(tl.program_id(0), num_tiles * num_blocks, tl.num_programs(0)):
        tile, block = place_of(program, num_tiles, num_blocks)
        if ACTIVATION != "":
            gate, up = _gated_sums(x, weight, tile, block, OUTPUTS, SPLIT, SPLITS, DOT, ROWS, OUTS, STEP)
        else:
            gate = _sums(x, weight, tile, block, INPUTS, SPLIT, SPLITS, DOT, ROWS, OUTS, STEP)
            up = gate
        _write(
            gate, up, bias, add_to, out, tile * OUTS, block * ROWS, OUTPUTS, HAS_BIAS, ADDS, ACTIVATION, OUTS
        )  # fmt: skip


@triton.jit
def _sums(
    x, weight, tile, block, INPUTS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """[OUTS, ROWS]. One loop over all inputs: those of a split are on their way while the one before it ends."""
    steps: tl.constexpr = (INPUTS + STEP - 1) // STEP
    of_split: tl.constexpr = SPLIT // STEP
    total = tl.zeros([OUTS, ROWS], tl.float32)
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    for step in range(0, steps):
        rows = tl.trans(x.load([block * ROWS, step * STEP]).to(DOT))
        own = weight.load([tile * OUTS, step * STEP]).to(DOT)
        sums = tl.dot(own, rows, sums, input_precision="ieee")
        if SPLITS > 1:  # noqa: SIM102 - the one is a constant, the other is not
            if (step + 1) % of_split == 0:
                total += sums
                sums = tl.zeros([OUTS, ROWS], tl.float32)
    if SPLITS == 1:
        total = sums
    elif steps % of_split > 0:
        total += sums
    return total


@triton.jit
def _gated_sums(
    x, weight, tile, block, OUTPUTS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """[OUTS, ROWS] of gate and up. A loop for each split: in one as above, ptxas lets every product wait for the one
    before it."""
    gate = tl.zeros([OUTS, ROWS], tl.float32)
    up = tl.zeros([OUTS, ROWS], tl.float32)
    for split in range(0, SPLITS):
        sums = tl.zeros([OUTS, ROWS], tl.float32)
        sums_up = tl.zeros([OUTS, ROWS], tl.float32)
        for step in range(0, SPLIT, STEP):
            k = split * SPLIT + step
            rows = tl.trans(x.load([block * ROWS, k]).to(DOT))
            sums = tl.dot(weight.load([tile * OUTS, k]).to(DOT), rows, sums, input_precision="ieee")
            own = weight.load([OUTPUTS + tile * OUTS, k]).to(DOT)
            sums_up = tl.dot(own, rows, sums_up, input_precision="ieee")
        gate += sums
        up += sums_up
    return gate, up


@triton.jit
def _write(
    gate, up, bias, add_to, out, first_out, first_row, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr, ACTIVATION: tl.constexpr, OUTS: tl.constexpr,
):  # fmt: skip
    """Finish sums [OUTS, rows] and write them, half of the rows after the other until there are CHUNK of them."""
    rows: tl.constexpr = gate.shape[1]
    if rows > CHUNK:
        first, second = _halves(gate, OUTS, rows)
        up_first, up_second = first, second
        if ACTIVATION != "":
            up_first, up_second = _halves(up, OUTS, rows)
        _write(first, up_first, bias, add_to, out, first_out, first_row, OUTPUTS, HAS_BIAS, ADDS, ACTIVATION, OUTS)
        _write(
            second, up_second, bias, add_to, out, first_out, first_row + rows // 2,
            OUTPUTS, HAS_BIAS, ADDS, ACTIVATION, OUTS,
        )  # fmt: skip
    else:
        n = first_out + tl.arange(0, OUTS)
        gate = finished(gate, up, bias, n, OUTPUTS, HAS_BIAS, ACTIVATION, 0.0, 0.0)
        if ADDS:
            gate += tl.trans(add_to.load([first_row, first_out])).to(tl.float32)
        out.store([first_row, first_out], tl.trans(gate).to(out.dtype))


@triton.jit
def _halves(sums, OUTS: tl.constexpr, ROWS: tl.constexpr):
    """[OUTS, ROWS / 2] twice: the first rows and the others."""
    return tl.split(tl.permute(tl.reshape(sums, [OUTS, 2, ROWS // 2]), [0, 2, 1]))
