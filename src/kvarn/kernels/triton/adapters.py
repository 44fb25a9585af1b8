"""Adapters by the Triton kernels: see `jit.adapters`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.adapters import LINE, PANEL, AdapterPages, PackedAdapter
from kvarn.kernels.batch import KVCache
from kvarn.kernels.checks import check_rows
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton.groups import SortedRows, sort_rows
from kvarn.kernels.triton.jit import adapters
from kvarn.kernels.triton.launch import TRITON_TYPES, multiplied_type

ROWS = 16
"""Rows of a tile, always: the bits of a row must not depend on it."""
SPLIT = 1024
"""Inputs of a split."""
STEP = 128
FEWEST = 16
"""Adapters that there is room for at least: with more, the kernels are compiled again for twice as many."""
PANELS = 4
"""Panels of outputs that a program adds to."""


@dataclass(slots=True)
class _Tables:
    """The adapters that can be computed with, as the kernels read them."""

    pages: torch.Tensor
    """[adapters, pages] int64: addresses."""
    places: torch.Tensor
    """[adapters, layers, parts, 4] int32: first line, rank, first output, outputs; zeros: there is no such part."""
    scales: torch.Tensor
    """[adapters, layers, parts] float32."""
    rank: int
    """Room for the ranks of a part: a power of two."""

    @staticmethod
    def of(device: torch.device, num_adapters: int, num_pages: int, layers: int, parts: int, rank: int) -> _Tables:
        shape = (num_adapters, layers, parts)
        pages = torch.zeros((num_adapters, num_pages), dtype=torch.int64, device=device)
        places = torch.zeros((*shape, 4), dtype=torch.int32, device=device)
        return _Tables(pages, places, torch.zeros(shape, dtype=torch.float32, device=device), rank)

    def grown(self, num_adapters: int, num_pages: int, layers: int, parts: int, rank: int) -> _Tables:
        have = (*self.pages.shape, *self.places.shape[1:3], self.rank)
        want = tuple(map(max, have, (num_adapters, num_pages, layers, parts, rank)))
        if want == have:
            return self
        larger = _Tables.of(self.pages.device, *want)
        larger.pages[: have[0], : have[1]] = self.pages
        larger.places[: have[0], : have[2], : have[3]] = self.places
        larger.scales[: have[0], : have[2], : have[3]] = self.scales
        return larger


class TritonAdapterMemory:
    """See `kvarn.kernels.adapters.AdapterMemory`. What the kernels ask for lies on the device: nothing of a step waits
    for the host."""

    def __init__(self, cache: KVCache, dtype: torch.dtype) -> None:
        self.dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self._pages = AdapterPages(cache)
        self.lines_per_page = self._pages.lines_per_page
        self._device = cache.keys[0].device
        self.num_blocks, self.write = self._pages.num_blocks, self._pages.write
        self._tables = _Tables.of(self._device, 0, 0, 0, 0, PANEL)
        self.captured_form = 0
        """Number of times that the tables were made anew."""

    def place(self, index: int, adapter: PackedAdapter, blocks: Sequence[int]) -> None:
        addresses = self._pages.addresses(blocks)
        parts = max((len(each) for each in adapter.layers), default=0)
        rank = max((part.rank for each in adapter.layers for part in each), default=1)
        num_adapters, rank = max(FEWEST, triton.next_power_of_2(index + 1)), triton.next_power_of_2(rank)
        tables = self._tables.grown(num_adapters, len(addresses), len(adapter.layers), parts, rank)
        self.captured_form += tables is not self._tables
        self._tables = tables
        places, scales = (
            torch.zeros_like(each[index], device="cpu") for each in (self._tables.places, self._tables.scales)
        )
        for layer, own in enumerate(adapter.layers):
            for number, part in enumerate(own):
                places[layer, number] = torch.tensor([part.first_line, part.rank, part.first_out, part.outs])
                scales[layer, number] = part.scale
        self._tables.pages[index, : len(addresses)] = torch.tensor(addresses, dtype=torch.int64).to(self._device)
        self._tables.places[index] = places.to(self._device)
        self._tables.scales[index] = scales.to(self._device)

    def batch(self, indices: torch.Tensor) -> TritonAdapterBatch:
        rows = sort_rows(indices.to(self._device), len(self._tables.pages))
        return TritonAdapterBatch(self, self._tables, rows)


@dataclass(frozen=True, slots=True)
class TritonAdapterBatch:
    """See `kvarn.kernels.adapters.AdapterBatch`."""

    memory: TritonAdapterMemory
    """Kept alive: the tables hold addresses in it."""
    tables: _Tables
    rows: SortedRows

    def add(self, layer: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Two kernels. `out` is float32. Raises KernelInputError where they do not fit together."""
        num_adapters, num_pages = self.tables.pages.shape
        layers, parts = self.tables.places.shape[1:3]
        check_rows(x, (len(self.rows.order), x.shape[1]), x.dtype)
        check_rows(out, (len(x), out.shape[1]), torch.float32)
        if layer >= layers:
            raise KernelInputError(f"layer {layer} of adapters that have {layers} layers")
        if not len(x) or not parts:
            return
        rank, tiles = self.tables.rank, self.rows.num_tiles(ROWS)
        splits = triton.cdiv(x.shape[1], SPLIT)
        sums = torch.empty((splits, len(x), parts, rank), dtype=torch.float32, device=x.device)
        same = {
            "INPUTS": x.shape[1],
            "PARTS": parts,
            "RANK": rank,
            "LINES_PER_PAGE": self.memory.lines_per_page,
            "ADAPTERS": num_adapters,
            "ADAPTERS_BLOCK": triton.next_power_of_2(num_adapters),
            "NUMBERS": TRITON_TYPES[self.memory.dtype],
            "PER_LINE": LINE // PANEL // self.memory.dtype.itemsize,
            "ROWS": ROWS,
        }
        both = torch.promote_types(x.dtype, self.memory.dtype)
        adapters.shrink[(tiles, parts * rank // PANEL, splits)](
            x,
            self.rows.order,
            self.rows.starts,
            self.tables.pages,
            self.tables.places,
            sums,
            len(x),
            layer,
            layers,
            num_pages,
            X_STRIDE=x.stride(0),
            SPLIT=SPLIT,
            STEP=STEP,
            DOT=multiplied_type(both),
            **same,
        )
        adapters.expand[(tiles, triton.cdiv(out.shape[1], PANELS * PANEL), parts)](
            sums,
            self.rows.order,
            self.rows.starts,
            self.tables.pages,
            self.tables.places,
            self.tables.scales,
            out,
            len(x),
            layer,
            layers,
            num_pages,
            OUT_STRIDE=out.stride(0),
            SPLITS=splits,
            PANELS=PANELS,
            num_warps=1,
            **same,
        )
