"""Low-rank adapters as the kernels read them: lines of 64 bytes in pages, which are chunks of KV blocks.

A KV block is, in each layer, one chunk of keys and one of values. Each chunk is a page: so adapters take blocks of the
same pool as the cache. The layout of the lines is described in csrc/linear/adapters.h and is the same for all backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import KVCache
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes.packing import LINE as LINE
from kvarn.shapes.packing import PANEL as PANEL


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """A part of an adapter, which adds scale * b (a x) to neighbouring outputs of a layer."""

    first_out: int
    """Its first output, counted before the layer's activation: gate above up."""
    a: torch.Tensor
    """[rank, in]."""
    b: torch.Tensor
    """[outs, rank]."""
    scale: float


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place of a part's lines: those of a, and behind them those of b."""

    first_line: int
    rank: int
    inputs: int
    first_out: int
    outs: int
    scale: float


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter's weights in the order in which they are read."""

    lines: torch.Tensor
    """uint8 [lines, 64]."""
    layers: tuple[tuple[PartPlace, ...], ...]
    """By the layer's number: `Linear.adapter_layer`."""

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes


class AdapterBatch(Protocol):
    """Rows of one step by their adapters. Made by `AdapterMemory.batch`, for one step."""

    def add(self, layer: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add what the adapters make of x [T, in] to a layer's sums out [T, out], in place: the reference."""
        ...


class AdapterMemory(Protocol):
    """The adapters that can be computed with now, by a small index. Used by one thread, but for `write`."""

    @property
    def captured_form(self) -> int | None:
        """Equal as long as a captured step with adapters stays right; None: such steps ask the host."""
        ...

    def num_blocks(self, adapter: PackedAdapter) -> int:
        """KV blocks that an adapter takes."""
        ...

    def write(self, adapter: PackedAdapter, blocks: Sequence[int]) -> None:
        """Copy an adapter into blocks of its own. May run in a thread beside steps that use other blocks."""
        ...

    def place(self, index: int, adapter: PackedAdapter, blocks: Sequence[int]) -> None:
        """From now on `index` stands for the adapter that was written into these blocks."""
        ...

    def batch(self, indices: torch.Tensor) -> AdapterBatch:
        """A step whose rows have these adapters [T] int64, -1 for none; in main memory, or on the device where steps
        are captured."""
        ...


def pack_adapter(layers: Sequence[Sequence[AdapterPart]], dtype: torch.dtype) -> PackedAdapter:
    """Bring an adapter into lines: bfloat16 where `dtype` is that, else float32."""
    numbers = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    per_line = LINE // PANEL // numbers.itemsize
    packed: list[torch.Tensor] = []
    places: list[tuple[PartPlace, ...]] = []
    first = 0
    for parts in layers:
        own: list[PartPlace] = []
        for part in parts:
            (rank, inputs), outs = part.a.shape, part.b.shape[0]
            lines = torch.cat([_panels(part.a.to(numbers), per_line), _panels(part.b.to(numbers), per_line)])
            own.append(PartPlace(first, rank, inputs, part.first_out, outs, part.scale))
            packed.append(lines)
            first += len(lines)
        places.append(tuple(own))
    return PackedAdapter(torch.cat(packed) if packed else torch.empty(0, LINE, dtype=torch.uint8), tuple(places))


def unpack(lines: torch.Tensor, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A weight [rows, columns] from its lines."""
    per_line = LINE // PANEL // dtype.itemsize
    panels = lines.view(dtype).view(-(-rows // PANEL), -1, PANEL, per_line)
    return panels.permute(0, 2, 1, 3).reshape(panels.shape[0] * PANEL, -1)[:rows, :columns]


def num_lines(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Lines of a weight [rows, columns]."""
    return -(-rows // PANEL) * -(-columns // (LINE // PANEL // dtype.itemsize))


def _panels(weight: torch.Tensor, per_line: int) -> torch.Tensor:
    rows, columns = weight.shape
    padded = F.pad(weight, (0, -columns % per_line, 0, -rows % PANEL))
    panels = padded.view(-1, PANEL, padded.shape[1] // per_line, per_line).permute(0, 2, 1, 3)
    return panels.contiguous().view(-1).view(torch.uint8).view(-1, LINE)


class AdapterPages:
    """The memory of a KV cache as pages of lines."""

    def __init__(self, cache: KVCache) -> None:
        self._chunks = [each.view(each.shape[0], -1).view(torch.uint8) for each in (*cache.keys, *cache.values)]
        self.lines_per_page = self._chunks[0].shape[1] // LINE
        if not self.lines_per_page:
            raise KernelInputError(f"blocks of {self._chunks[0].shape[1]} bytes a layer are too small for adapters")
        self._lines_per_block = self.lines_per_page * len(self._chunks)

    def num_blocks(self, adapter: PackedAdapter) -> int:
        return max(1, -(-len(adapter.lines) // self._lines_per_block))

    def write(self, adapter: PackedAdapter, blocks: Sequence[int]) -> None:
        size = len(blocks) * self._lines_per_block
        if len(adapter.lines) > size:
            raise KernelInputError(f"{len(blocks)} blocks hold {size} lines, the adapter has {len(adapter.lines)}")
        pages = adapter.lines.new_zeros(len(blocks), len(self._chunks), self.lines_per_page * LINE)
        pages.view(-1)[: adapter.lines.numel()] = adapter.lines.view(-1)
        for number, chunk in enumerate(self._chunks):
            where = torch.tensor(blocks, device=chunk.device)
            chunk[:, : pages.shape[2]].index_copy_(0, where, pages[:, number].to(chunk.device))

    def addresses(self, blocks: Sequence[int]) -> list[int]:
        """The address of each page, in order."""
        return [chunk.data_ptr() + block * chunk.stride(0) for block in blocks for chunk in self._chunks]

    def read(self, blocks: Sequence[int], first: int, count: int) -> torch.Tensor:
        """uint8 [count, 64]: lines from `first` on."""
        pages = range(first // self.lines_per_page, -(-(first + count) // self.lines_per_page))
        size, chunks = self.lines_per_page * LINE, len(self._chunks)
        parts = [self._chunks[page % chunks][blocks[page // chunks], :size] for page in pages]
        begin = first - pages.start * self.lines_per_page
        return torch.cat(parts).view(-1, LINE)[begin : begin + count]


def group_rows(indices: torch.Tensor) -> tuple[list[int], list[tuple[int, int]]]:
    """Rows that have an adapter, adapter by adapter, and for each adapter its index and the number of its rows."""
    order = torch.argsort(indices, stable=True)
    order = order[indices[order] >= 0]
    adapters, counts = torch.unique_consecutive(indices[order], return_counts=True)
    return order.tolist(), list(zip(adapters.tolist(), counts.tolist(), strict=True))
