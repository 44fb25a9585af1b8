"""Kernels that begin while the one before them ends (programmatic dependent launch)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvarn.kernels.triton.launch import is_interpreting

ON_GPU = tl.constexpr(not is_interpreting())
LINES = tl.constexpr(4)
"""Lines of 128 bytes, of each row."""


@triton.jit
def wait_for_earlier_kernel():
    """Let the next kernel's programs be placed beside this one's, and wait until the kernel before has ended: nothing
    that it reads or writes may be touched before. Launched as by `launch.overlapped`, else nothing is waited for."""
    if ON_GPU:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(numbers, n, ROWS: tl.constexpr, WIDTH: tl.constexpr, first):
    """Ask for the first lines of rows n of a weight [ROWS, WIDTH], from number `first` of each on: they are on their
    way while the kernel before ends. None of a step's kernels writes them."""
    if ON_GPU:
        line: tl.constexpr = 1024 // numbers.dtype.element_ty.primitive_bitwidth
        k = tl.minimum(first + line * tl.arange(0, LINES), WIDTH - 1)
        at = tl.minimum(n, ROWS - 1).to(tl.int64)[:, None] * WIDTH + k[None, :]
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [numbers + at], tl.int32, False, 1)


@triton.jit
def prefetch_bytes(numbers, first, last, LINES_ASKED: tl.constexpr):
    """Like `prefetch`, of bytes `first` to `last`: so many lines of them at most."""
    if ON_GPU:
        at = tl.minimum(first + 128 * tl.arange(0, LINES_ASKED), last)
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [numbers + at], tl.int32, False, 1)
