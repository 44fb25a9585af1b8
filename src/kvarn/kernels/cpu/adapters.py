"""Adapters for the compiled kernels, which read them from their pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kvarn.kernels.adapters import AdapterBatch, AdapterPages, PackedAdapter, group_rows
from kvarn.kernels.batch import KVCache
from kvarn.kernels.cpu import _native
from kvarn.kernels.errors import KernelInputError


@dataclass(frozen=True, slots=True)
class CpuAdapterBatch:
    native: _native.AdapterBatch

    def add(self, layer: int, x: torch.Tensor, out: torch.Tensor) -> None:
        raise KernelInputError("a layer of the torch kernels cannot take adapters of the compiled ones")


class CpuAdapterMemory:
    captured_form = None

    def __init__(self, cache: KVCache, dtype: torch.dtype) -> None:
        self._pages = AdapterPages(cache)
        self.num_blocks, self.write = self._pages.num_blocks, self._pages.write
        self._cache = cache  # kept alive: the table holds addresses in it
        self._wide = dtype != torch.bfloat16

    @cached_property
    def _table(self) -> _native.AdapterTable:
        return _native.AdapterTable(self._pages.lines_per_page, self._wide)

    def place(self, index: int, adapter: PackedAdapter, blocks: Sequence[int]) -> None:
        layers = [
            [(part.first_line, part.rank, part.inputs, part.first_out, part.outs, part.scale) for part in parts]
            for parts in adapter.layers
        ]
        self._table.set(index, self._pages.addresses(blocks), layers)

    def batch(self, indices: torch.Tensor) -> CpuAdapterBatch:
        return CpuAdapterBatch(_native.AdapterBatch(self._table, *group_rows(indices)))


def native_adapters(batch: AdapterBatch | None) -> _native.AdapterBatch | None:
    """The batch, for compiled code. Raises KernelInputError for one of other kernels."""
    if batch is None:
        return None
    if not isinstance(batch, CpuAdapterBatch):
        raise KernelInputError(f"adapters must be those of the compiled kernels, not {type(batch).__name__}")
    return batch.native
