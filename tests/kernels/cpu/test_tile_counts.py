"""What the kernels for AMX do, counted in the emulator: each line comes from afar as seldom as it may."""

from __future__ import annotations

import pytest
import torch

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from attention_layers import QWEN, Layer  # noqa: E402
from kvarn.kernels.torch.quantize import quantize  # noqa: E402
from kvarn.kernels.weights import Quantization, Weight  # noqa: E402
from packing import pack_linear  # noqa: E402

ISA = "emulated_amx"
pytestmark = pytest.mark.skipif(ISA not in _native.emulated_instruction_sets(), reason="needs AVX2")

TILE = 16
"""Rows, or outputs, of a tile; and lines of 64 bytes."""


def count(kind: Quantization | None, out: int, size: int, rows: int) -> _native.TileCounter:
    weight = Weight(torch.randn(out, size).bfloat16()) if kind is None else quantize(torch.randn(out, size), kind)
    linear, x = pack_linear(_native.Backend(ISA), weight), torch.randn(rows, size)
    with _native.TileCounter() as tiles:
        linear(x)
    return tiles


@pytest.mark.parametrize(("kind", "inputs"), [(None, 32), ("int8", 64)])
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32])
def test_few_rows_read_each_weight_once(kind: Quantization | None, inputs: int, rows: int) -> None:
    tiles = count(kind, 256, 1024, rows)
    steps, tiles_of_rows = 1024 // inputs, -(-rows // TILE)
    products = tiles_of_rows * 256 // TILE * steps
    assert sum(tiles.products) == products
    assert tiles.loaded[2] + tiles.loaded[3] == 256 // TILE * steps * TILE + rows * steps


@pytest.mark.parametrize(("kind", "inputs"), [(None, 32), ("int8", 64), ("int4", 64)])
@pytest.mark.parametrize("size", [1024, 3072])
def test_many_rows_load_a_tile_a_product_and_few_lines_from_afar(
    kind: Quantization | None, inputs: int, size: int
) -> None:
    tiles = count(kind, 512, size, 1024)
    products = 1024 // TILE * 512 // TILE * size // inputs
    assert tiles.products[TILE] == sum(tiles.products) == products
    assert sum(tiles.loaded) == products * TILE, "two tiles of rows by two of outputs"
    assert (tiles.loaded[2] + tiles.loaded[3]) / products < 2.5, "of sixteen lines"


def test_int8_finds_rows_in_the_first_cache_again() -> None:
    there, back = count(None, 512, 1024, 512), count("int8", 512, 1024, 512)
    assert there.loaded[0] == 0
    assert back.loaded[0] / sum(back.loaded) > 0.1


@pytest.mark.parametrize("tokens", [512, 1024])
def test_a_prompt_reads_keys_and_values_seldom_from_afar(tokens: int) -> None:
    layer = Layer(QWEN, "bfloat16", ISA)
    sequence = layer.new(tokens)
    with _native.TileCounter() as tiles:
        layer.step((sequence, tokens))
    assert (tiles.loaded[2] + tiles.loaded[3]) / sum(tiles.products) < 1.5


def test_tiles_are_counted_once_at_a_time() -> None:
    with _native.TileCounter(), pytest.raises(RuntimeError, match="already"), _native.TileCounter():
        pass
    with _native.TileCounter() as tiles:
        pass
    assert sum(tiles.products) == 0
