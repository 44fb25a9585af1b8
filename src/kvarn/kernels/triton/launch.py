"""Options and types of launches, on a GPU and in Triton's interpreter."""

from __future__ import annotations

import os

import torch
import triton.language as tl

MAX_ROWS = 64
"""With more, programs that wait for the kernel before take room from it for longer than they gain."""
TRITON_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def is_interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on tensors in main memory: `TRITON_INTERPRET=1` was set before
    Triton was imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def launch_options(num_rows: int) -> dict[str, bool]:
    """Options of a launch, by the rows of the step, of kernels that call `jit.overlap.wait_for_earlier_kernel`: they
    begin while the one before them ends."""
    return {"launch_pdl": True} if num_rows <= MAX_ROWS and not is_interpreting() else {}


def multiplied_type(dtype: torch.dtype) -> tl.dtype:
    """The type in which numbers of a type are multiplied: their own, but for the interpreter, whose products of
    bfloat16 are wrong. Products and sums of bfloat16 numbers in float32 are those of the tensor cores."""
    return tl.float32 if is_interpreting() and dtype == torch.bfloat16 else TRITON_TYPES[dtype]
