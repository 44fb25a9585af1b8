"""Quantized weights in the order in which tensor cores take them.

64 outputs by the inputs of a step are a tile. A thread of a warp group multiplies outputs r and r + 8 of its warp's 16
and inputs 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of each 16, where r and c are its number divided by 4 and what is left. Its
numbers lie side by side in the tile, so that loads of 16 bytes bring them into the registers where they are multiplied:
nothing is moved between threads. `device_weight` writes the order, and says it once more for torch.
"""

import triton
import triton.language as tl

OUTPUTS_TOGETHER = tl.constexpr(64)


@triton.constexpr_function
def padded(outputs: int) -> int:
    """Outputs with those that fill the last tile up."""
    return (outputs + 63) // 64 * 64


@triton.jit
def load_tiles(
    weight, tile, k, WIDTH: tl.constexpr, HELD: tl.constexpr, OUTPUTS: tl.constexpr, OUTS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Bytes of STEP inputs from k on, of a tile of OUTS outputs: [loads, tiles of 64, 128 times the bytes that a thread
    loads at once], zeros where there are none. HELD: bytes of the WIDTH inputs of an output."""
    tiles: tl.constexpr = OUTS // OUTPUTS_TOGETHER
    steps: tl.constexpr = WIDTH // STEP
    size: tl.constexpr = OUTPUTS_TOGETHER * HELD // steps
    each: tl.constexpr = min(16, size // 128)
    own = (tile * tiles + tl.arange(0, tiles))[None, :, None]
    at = (own.to(tl.int64) * steps + k // STEP) * size
    at += tl.arange(0, size // (128 * each))[:, None, None] * (128 * each) + tl.arange(0, 128 * each)[None, None, :]
    return tl.load(weight + at, mask=(own * OUTPUTS_TOGETHER < OUTPUTS) & (k < WIDTH), other=0.0)


@triton.jit
def arranged(numbers):
    """Numbers of `load_tiles`, or what became of each: [outputs, inputs]."""
    parts: tl.constexpr = numbers.shape[0]
    tiles: tl.constexpr = numbers.shape[1]
    each: tl.constexpr = numbers.shape[2] // 128
    numbers = tl.reshape(numbers, [parts, tiles, 4, 8, 4, each // 8, 2, 2, 2])
    numbers = tl.permute(numbers, [1, 2, 7, 3, 0, 5, 6, 4, 8])
    return tl.reshape(numbers, [tiles * OUTPUTS_TOGETHER, parts * each * 2])
