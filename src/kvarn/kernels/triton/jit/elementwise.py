"""Norms, activations and other work that takes each row or number by itself."""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.overlap import wait_for_earlier_kernel

NORM_BLOCK = tl.constexpr(1024)
"""Numbers of a row that are squared together. The same everywhere: it fixes the order of the sum."""


@triton.jit
def row_scale(row, eps, SIZE: tl.constexpr):
    """The factor by which a root-mean-square norm multiplies a row of numbers that lie side by side."""
    offsets = tl.arange(0, NORM_BLOCK)
    squares = tl.zeros([NORM_BLOCK], tl.float32)
    for first in range(0, SIZE, NORM_BLOCK):
        part = tl.load(row + first + offsets, mask=first + offsets < SIZE, other=0.0).to(tl.float32)
        squares += part * part
    return tl.rsqrt(tl.sum(squares, 0) / SIZE + eps)


@triton.jit
def tanh(x):
    """By the exponential, which overflows to the right limits."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of float32 numbers, by name."""
    if ACTIVATION == "silu":
        result = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu_tanh":
        result = x * 0.5 * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "gelu":
        result = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "sigmoid":
        result = 1.0 / (1.0 + tl.exp(-x))
    else:
        result = tanh(x)
    return result


@triton.jit
def clamped_swiglu(gate, up, LIMIT: tl.constexpr, ALPHA: tl.constexpr):
    """(up + 1) * gate * sigmoid(ALPHA * gate), after gate and up are clamped (gpt-oss)."""
    gate = tl.minimum(gate, LIMIT)
    up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    return (up + 1.0) * (gate * activate(ALPHA * gate, "sigmoid"))


@triton.jit
def norm_rows(
    x,
    weight,
    out,
    eps,
    X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    ADDS: tl.constexpr,
):
    """The root-mean-square norm of one row of x [M, SIZE] into out, or added to it."""
    wait_for_earlier_kernel()
    row = tl.program_id(0).to(tl.int64)
    factor = row_scale(x + row * X_STRIDE, eps, SIZE)
    for first in range(0, SIZE, NORM_BLOCK):
        at = first + tl.arange(0, NORM_BLOCK)
        inside = at < SIZE
        part = tl.load(x + row * X_STRIDE + at, mask=inside, other=0.0).to(tl.float32)
        normed = part * factor * tl.load(weight + at, mask=inside, other=0.0)
        if ADDS:
            normed += tl.load(out + row * OUT_STRIDE + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * OUT_STRIDE + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def finish_rows(
    sums, out, STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, SIZE: tl.constexpr, ACTIVATION: tl.constexpr,
    ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """activation(gate) * up of sums [M, 2 SIZE], gate before up (without an activation: sums [M, SIZE] themselves),
    into out [M, SIZE], or added to it."""
    wait_for_earlier_kernel()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    result = tl.load(sums + row * STRIDE + at, mask=inside, other=0.0)
    if ACTIVATION != "":
        result = activate(result, ACTIVATION) * tl.load(sums + row * STRIDE + SIZE + at, mask=inside, other=0.0)
    if ADDS:
        result += tl.load(out + row * OUT_STRIDE + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * OUT_STRIDE + at, result.to(out.dtype.element_ty), mask=inside)
