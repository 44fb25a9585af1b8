"""Types of numbers as Triton names them."""

from __future__ import annotations

import torch
import triton.language as tl

from kvarn.kernels.triton.interpreter import is_interpreting

TRITON_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def multiplied_type(dtype: torch.dtype) -> tl.dtype:
    """The type in which numbers of a type are multiplied: their own, but for the interpreter, whose products of
    bfloat16 are wrong. Products and sums of bfloat16 numbers in float32 are those of the tensor cores."""
    return tl.float32 if is_interpreting() and dtype == torch.bfloat16 else TRITON_TYPES[dtype]
