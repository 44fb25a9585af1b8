"""Adapters of linear layers: against float64, and the same bits whatever the company of a row."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.adapters import AdapterMemory, AdapterPart, PackedAdapter, pack_adapter
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.torch.linear import TorchLinear
from kvarn.kernels.weights import Weight

FORMATS = ["float32", "bfloat16", "int8", "int4"]
IN = 192
OUTS = (50, 30)
"""Widths of the two outputs that are packed as one layer."""


def make_layer(kernels: Kernels, form: str, out: int = sum(OUTS), activation: Activation | None = None) -> Linear:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(out, IN, generator=generator) / IN**0.5
    if form in ("int8", "int4"):
        packed = kernels.packer.quantize(weight.bfloat16(), form)
    else:
        packed = Weight(weight.to(getattr(torch, form)))
    layer = kernels.packer.pack_linear(packed, torch.randn(out, generator=generator), activation)
    layer.adapter_layer = 0
    return layer


def parts_of(seed: int, ranks: tuple[int | None, int | None], outs: tuple[int, int] = OUTS) -> list[AdapterPart]:
    generator = torch.Generator().manual_seed(seed)
    parts, first = [], 0
    for rank, count in zip(ranks, outs, strict=True):
        if rank is not None:
            a = torch.randn(rank, IN, generator=generator) / IN**0.5
            b = torch.randn(count, rank, generator=generator) / rank**0.5
            parts.append(AdapterPart(first, a.bfloat16().float(), b.bfloat16().float(), 0.7 + seed))
        first += count
    return parts


@dataclass
class World:
    """Adapters in the blocks of a small cache, scattered."""

    kernels: Kernels
    dtype: torch.dtype
    adapters: list[list[AdapterPart]]

    def __post_init__(self) -> None:
        self.cache = self.kernels.operations.new_kv_cache(3, 400, HeadShape(2, 1, 8), "float32")
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor.view(torch.uint8).fill_(255)  # NaN
        self.memory: AdapterMemory = self.kernels.operations.new_adapter_memory(self.cache, self.dtype)
        free = torch.randperm(400, generator=torch.Generator().manual_seed(1)).tolist()
        for index, parts in enumerate(self.adapters):
            packed: PackedAdapter = pack_adapter([parts], self.dtype)
            blocks = [free.pop() for _ in range(self.memory.num_blocks(packed))]
            self.memory.write(packed, blocks)
            self.memory.place(index, packed, blocks)

    def run(self, layer: Linear, x: torch.Tensor, indices: list[int] | None, **options) -> torch.Tensor:
        batch = None if indices is None else self.memory.batch(torch.tensor(indices))
        return layer(x.to(input_type(layer), copy=True), adapters=batch, **options)


def input_type(layer: Linear) -> torch.dtype:
    """float32, but where torch multiplies bfloat16 natively."""
    packs = isinstance(layer, TorchLinear) and layer.source.dtype == torch.bfloat16 and layer.packs
    return torch.bfloat16 if packs else torch.float32


def added(x: torch.Tensor, parts: list[AdapterPart], outs: int) -> torch.Tensor:
    total = torch.zeros(len(x), outs, dtype=torch.float64)
    for part in parts:
        own = (x.double() @ part.a.double().T * part.scale) @ part.b.double().T
        total[:, part.first_out : part.first_out + len(part.b)] += own
    return total


ADAPTERS = [parts_of(1, (8, 8)), parts_of(2, (16, None)), parts_of(3, (None, 5)), parts_of(4, (33, 64))]
MIX = [2, -1, 0, 0, 3, 1, -1, 3, 0]


@pytest.mark.parametrize("form", FORMATS)
def test_adapters_add_their_product_to_each_row_that_names_them(every_kernels: Kernels, form: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        world, layer = World(every_kernels, dtype, ADAPTERS), make_layer(every_kernels, form)
        native = input_type(layer) is torch.bfloat16
        x, norm = torch.randn(len(MIX), IN).to(input_type(layer)).float(), Norm(torch.randn(IN), 1e-5)
        for options in ({}, {"norm": norm}):
            found = world.run(layer, x, MIX, **options)
            base = world.run(layer, x, None, **options)
            normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight if options else x
            for row, index in enumerate(MIX):
                want = added(normed[row : row + 1], ADAPTERS[index], sum(OUTS))[0] if index >= 0 else 0.0
                torch.testing.assert_close(
                    (found.double() - base.double())[row],
                    want + torch.zeros(sum(OUTS)).double(),
                    atol=0.13 if native else 2e-4,  # sums of both are rounded to bfloat16
                    rtol=1e-4,
                )


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_added_to_gate_and_up_comes_before_the_activation(every_kernels: Kernels, form: str) -> None:
    adapters = [parts_of(1, (8, 8), (OUTS[0], OUTS[0])), parts_of(2, (None, 4), (OUTS[0], OUTS[0]))]
    world = World(every_kernels, torch.float32, adapters)
    gated, plain = (make_layer(every_kernels, form, 2 * OUTS[0], each) for each in ("silu", None))
    x, mix = torch.randn(7, IN), [0, 1, -1, 1, 0, 0, -1]
    gate, up = world.run(plain, x, mix).double().chunk(2, -1)
    tolerance = {} if input_type(plain) is torch.float32 else {"atol": 0.01, "rtol": 0.02}
    found = world.run(gated, x, mix).double()
    torch.testing.assert_close(found, F.silu(gate) * up, **({"atol": 1e-5, "rtol": 1e-5} | tolerance))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(isa: str, form: str, gated: bool) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    kernels = cpu_kernels(isa)
    outs = (OUTS[0], OUTS[0]) if gated else OUTS
    adapters = [parts_of(1, (8, 8), outs), parts_of(2, (16, None), outs), parts_of(3, (40, 3), outs)]
    world, layer = (
        World(kernels, torch.bfloat16, adapters),
        make_layer(kernels, form, sum(outs), "silu" if gated else None),
    )
    generator, norm = torch.Generator().manual_seed(9), Norm(torch.randn(IN), 1e-5)
    for rows in (2, 9, 70):
        x = torch.randn(rows, IN, generator=generator)
        mix = torch.randint(-1, 3, (rows,), generator=generator).tolist()
        residual = torch.randn(rows, layer.out_features, generator=generator)
        together = world.run(layer, x, mix, norm=norm, add_to=residual.clone())
        none = world.run(layer, x, None, norm=norm, add_to=residual.clone())
        for row in range(0, rows, max(1, rows // 9)):
            one = slice(row, row + 1)
            alone = world.run(layer, x[one], mix[one], norm=norm, add_to=residual[one].clone())
            assert torch.equal(alone, together[one])
            assert torch.equal(none[one], together[one]) == (mix[row] == -1)


def test_many_rows_of_one_adapter_equal_single_ones(isa: str) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    kernels = cpu_kernels(isa)
    world, layer = World(kernels, torch.float32, ADAPTERS), make_layer(kernels, "bfloat16")
    x = torch.randn(150, IN)
    together = world.run(layer, x, [3] * 150)
    for row in (0, 47, 48, 149):
        assert torch.equal(world.run(layer, x[row : row + 1], [3]), together[row : row + 1])


def test_an_adapter_that_does_not_touch_a_layer_changes_nothing(every_kernels: Kernels) -> None:
    world, layer = World(every_kernels, torch.float32, [[]]), make_layer(every_kernels, "float32")
    x = torch.randn(3, IN)
    assert torch.equal(world.run(layer, x, [0, -1, 0]), world.run(layer, x, None))
    layer.adapter_layer = -1
    changed = World(every_kernels, torch.float32, ADAPTERS)
    assert torch.equal(changed.run(layer, x, [0, -1, 3]), changed.run(layer, x, None))
