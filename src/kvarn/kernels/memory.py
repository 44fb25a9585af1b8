"""Large zeroed tensors that cost nothing until they are used."""

from __future__ import annotations

import math
import mmap

import torch


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros whose pages the operating system supplies when they are first touched.

    `torch.zeros` writes every byte at once: a second for each few gigabytes, and memory held that may never be needed.
    The memory is page-aligned and lives as long as the tensor or a view of it. It is private: pages that could be
    shared with other processes take twice as long to supply.
    """
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
