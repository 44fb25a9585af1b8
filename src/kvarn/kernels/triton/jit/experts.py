"""Mixtures of experts: two products by expert over tokens sorted by expert, and the sum of what a token's experts give.

A pair is a token and one of its experts; token t has the pairs t * EACH to (t + 1) * EACH. A product is one chain over
all inputs, as in `jit.linear`, so the bits of a row do not depend on what other tokens ask for.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.fragments import padded
from kvarn.kernels.triton.jit.groups import tile_of
from kvarn.kernels.triton.jit.linear import finished, sums_of_split


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x,
    weight,
    scales,
    bias,
    order,
    starts,
    shares,
    out,
    num_rows,
    X_STRIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    LENGTH: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_SUB_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    EACH: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    NUMBERS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    """One tile of `OUTS` outputs of an expert by `ROWS` of its pairs, which `groups.sort` has brought into `order`.

    With an activation the first product of an expert: x [num_rows, INPUTS] of tokens to out [pairs, OUTPUTS] in the
    order of experts. Without, the second one: x [num_rows, INPUTS] in that order to out [pairs, OUTPUTS] float32 by
    pair, multiplied by shares [pairs]. Weights are those of `linear.multiply`, the experts' one below the other;
    LENGTH: the chain's, a multiple of STEP, WIDTH at least.
    """
    gated: tl.constexpr = ACTIVATION != ""
    parts: tl.constexpr = 2 if gated else 1
    expert, first, end = tile_of(tl.program_id(0), starts, ROWS, EXPERTS, EXPERTS_BLOCK)
    if first >= end:
        return
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    place = first + tl.arange(0, ROWS)
    real = place < end
    pair = tl.load(order + place, mask=real, other=0)
    m = tl.where(real, pair // EACH if gated else place, num_rows)
    own = expert.to(tl.int64) * (parts * (OUTPUTS if FORMAT == "plain" else padded(OUTPUTS)))
    weight += own * (WIDTH // 2 if FORMAT == "4 bits" else WIDTH)
    if FORMAT == "4 bits":
        scales += own * (WIDTH // GROUP)
    if FORMAT == "8 bits":
        scales += own
    if HAS_BIAS:
        bias += expert.to(tl.int64) * (parts * OUTPUTS)
    factors = tl.full([ROWS], 1.0, tl.float32)
    result, up = sums_of_split(
        x, None, factors, m, num_rows, weight, scales, tl.program_id(1), 0,
        X_STRIDE, INPUTS, WIDTH, OUTPUTS, LENGTH, 1, FORMAT, GROUP, HAS_ZEROS, HAS_SUB_SCALES, False,
        gated, NUMBERS, DOT, ROWS, OUTS, STEP,
    )  # fmt: skip
    result = finished(result, up, bias, n, OUTPUTS, HAS_BIAS, ACTIVATION, LIMIT, ALPHA)
    row = place
    if not gated:
        result *= tl.load(shares + pair, mask=real, other=0.0)[None, :]
        row = pair
    to = out + row.to(tl.int64)[None, :] * OUTPUTS + n[:, None]
    tl.store(to, result.to(out.dtype.element_ty), mask=(n < OUTPUTS)[:, None] & real[None, :])


@triton.jit
def add_up(
    parts,
    slots,
    shared,
    out,
    OUT_STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    EACH: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of a token's pairs, parts [T * EACH, SIZE] float32, in their order; then what the shared expert gives
    [T, SIZE] float32; into out [T, SIZE], or added to it. Tokens with a negative slot [T] have no pairs."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    visits = inside & (tl.load(slots + token) >= 0)
    total = tl.zeros([BLOCK], tl.float32)
    for number in range(EACH):
        total += tl.load(parts + (token * EACH + number) * SIZE + at, mask=visits, other=0.0)
    if HAS_SHARED:
        total += tl.load(shared + token * SIZE + at, mask=inside, other=0.0)
    if ADDS:
        total += tl.load(out + token * OUT_STRIDE + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * OUT_STRIDE + at, total.to(out.dtype.element_ty), mask=inside)
