"""Adapters by the Triton kernels: against the reference, and their bits against each other."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.adapters import AdapterBatch, AdapterPart, pack_adapter
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton import adapters

IN, OUTS = 150, (70, 20, 33)
"""Of the outputs that are packed as one layer: no whole panels, and lines that cross pages."""
RANKS = [(8, 8, 8), (16, None, 3), (None, 40, None), (None, None, None)]
MIX = [2, -1, 0, 0, 3, 1, -1, 1, 0]


def parts_of(seed: int, layer: int) -> list[AdapterPart]:
    generator = torch.Generator().manual_seed(10 * seed + layer)
    parts, first = [], 0
    for rank, outs in zip(RANKS[seed], OUTS, strict=True):
        if rank is not None:
            a = torch.randn(rank, IN, generator=generator) / IN**0.5
            b = torch.randn(outs, rank, generator=generator) / rank**0.5
            parts.append(AdapterPart(first, a.bfloat16().float(), b.bfloat16().float(), 0.7 + seed))
        first += outs
    return parts


def place_all(kernels: Kernels, dtype: torch.dtype, mix: list[int]) -> AdapterBatch:
    """Adapters of two layers in scattered blocks of a cache that holds nothing else but NaN; the last comes late."""
    cache = kernels.operations.new_kv_cache(2, 300, HeadShape(2, 1, 8), "float32")
    for tensor in (*cache.keys, *cache.values):
        tensor.view(torch.uint8).fill_(255)
    memory = kernels.operations.new_adapter_memory(cache, dtype)
    free = torch.randperm(300, generator=torch.Generator().manual_seed(1)).tolist()
    for index in range(len(RANKS)):
        packed = pack_adapter([parts_of(index, 0), parts_of(index, 1)], dtype)
        blocks = [free.pop() for _ in range(memory.num_blocks(packed))]
        memory.write(packed, blocks)
        memory.place(index, packed, blocks)
    return memory.batch(torch.tensor(mix))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_gets_what_its_adapter_adds(
    kernels: Kernels, reference: Kernels, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "SPLIT", 128)
    x = torch.randn(len(MIX), IN, generator=torch.Generator().manual_seed(3)).to(dtype)
    for layer in (0, 1):
        found = torch.randn(len(MIX), sum(OUTS), generator=torch.Generator().manual_seed(4))
        want = found.clone()
        untouched = found[[1, 4, 6]].clone()
        place_all(kernels, dtype, MIX).add(layer, x, found)
        place_all(reference, dtype, MIX).add(layer, x, want)
        torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
        assert torch.equal(found[[1, 4, 6]], untouched)


def test_a_row_has_the_same_bits_alone_and_among_others(kernels: Kernels) -> None:
    mix = [0, 1, 2, -1] * 10
    x, sums = torch.randn(len(mix), IN), torch.randn(len(mix), sum(OUTS))
    together = sums.clone()
    place_all(kernels, torch.float32, mix).add(1, x, together)
    for row in (0, 1, 2, 3, 38):
        own = slice(row, row + 1)
        alone = sums[own].clone()
        place_all(kernels, torch.float32, mix[own]).add(1, x[own], alone)
        assert torch.equal(alone, together[own])


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    batch = place_all(kernels, torch.float32, [0])
    with pytest.raises(KernelInputError, match="layer 2 of adapters that have 2"):
        batch.add(2, torch.zeros(1, IN), torch.zeros(1, sum(OUTS)))
    with pytest.raises(KernelInputError, match="rows must be"):
        batch.add(0, torch.zeros(2, IN), torch.zeros(2, sum(OUTS)))
    with pytest.raises(KernelInputError, match="rows must be"):
        batch.add(0, torch.zeros(1, IN), torch.zeros(1, sum(OUTS), dtype=torch.bfloat16))
