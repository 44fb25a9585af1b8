"""Adapters in torch: the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvarn.kernels.adapters import AdapterPages, PackedAdapter, PartPlace, group_rows, num_lines, unpack
from kvarn.kernels.batch import KVCache


class TorchAdapterMemory:
    """See `kvarn.kernels.adapters.AdapterMemory`. Weights are taken from their pages when they are used."""

    captured_form = None

    def __init__(self, cache: KVCache, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.pages = AdapterPages(cache)
        self.num_blocks, self.write = self.pages.num_blocks, self.pages.write
        self._placed: dict[int, tuple[PackedAdapter, list[int]]] = {}

    def place(self, index: int, adapter: PackedAdapter, blocks: Sequence[int]) -> None:
        self._placed[index] = adapter, list(blocks)

    def batch(self, indices: torch.Tensor) -> TorchAdapterBatch:
        return TorchAdapterBatch(self, *group_rows(indices))

    def parts(self, index: int, layer: int) -> list[tuple[PartPlace, torch.Tensor, torch.Tensor]]:
        """An adapter's parts in a layer: places, with a and b in float32."""
        adapter, blocks = self._placed[index]
        return [(place, *self._weights(place, blocks)) for place in adapter.layers[layer]]

    def _weights(self, place: PartPlace, blocks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        of_a, of_b = (num_lines(*shape, self.dtype) for shape in ((place.rank, place.inputs), (place.outs, place.rank)))
        lines = self.pages.read(blocks, place.first_line, of_a + of_b)
        a = unpack(lines[:of_a], place.rank, place.inputs, self.dtype)
        return a.float(), unpack(lines[of_a:], place.outs, place.rank, self.dtype).float()


@dataclass(frozen=True, slots=True)
class TorchAdapterBatch:
    memory: TorchAdapterMemory
    rows: list[int]
    groups: list[tuple[int, int]]

    def add(self, layer: int, x: torch.Tensor, out: torch.Tensor) -> None:
        first = 0
        for index, count in self.groups:
            rows = torch.tensor(self.rows[first : first + count], device=x.device)
            first += count
            for place, a, b in self.memory.parts(index, layer):
                added = ((x[rows].float() @ a.T) * place.scale) @ b.T
                own = out[:, place.first_out : place.first_out + place.outs]
                own[rows] = (own[rows].float() + added).to(out.dtype)
