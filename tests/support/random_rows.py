"""Random weights; rows and memory that show what a kernel reads or leaves out; a fused multiply-add."""

from __future__ import annotations

import numpy as np
import torch


def random_weight(out: int, in_features: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(out, in_features) / in_features**0.5).to(dtype)


def poison_freed_memory(size: int) -> None:
    """Fill memory that the next allocations will get, so that what a kernel fails to write is seen."""
    del [torch.full((size,), float("nan")) for _ in range(4)][:]


def in_rows_of_nan(x: torch.Tensor) -> torch.Tensor:
    """x with NaN on both sides of every row: nothing beyond a row may be read into a sum."""
    around = torch.full((x.shape[0], x.shape[1] + 14), float("nan"))
    around[:, 7:-7] = x
    return around[:, 7:-7]


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c rounded once to float32. The product of two float32 numbers is exact in float64; the sum is rounded to
    odd there (Boldo and Melquiond, 2008), so that rounding it again gives what one rounding would have."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64).copy()
    inexact_even = (error != 0) & (bits & 1 == 0)
    towards_zero = (error > 0) != (total > 0)
    bits += np.where(inexact_even, np.where(towards_zero, -1, 1), 0)
    return bits.view(np.float64).astype(np.float32)
