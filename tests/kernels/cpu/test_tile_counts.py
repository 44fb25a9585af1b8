"""Tile instructions and loaded lines of the kernels for AMX, counted in the emulator."""

from __future__ import annotations

import pytest
import torch

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from attention_layers import QWEN, Layer  # noqa: E402
from kvarn.kernels.torch.quantize import quantize  # noqa: E402
from kvarn.kernels.weights import Quantization, Weight  # noqa: E402
from packing import pack_linear  # noqa: E402
from profiles import thorough  # noqa: E402

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
def test_few_rows_load_each_weight_once(kind: Quantization | None, inputs: int, rows: int) -> None:
    tiles = count(kind, 256, 1024, rows)
    steps, panels = 1024 // inputs, 256 // TILE
    assert sum(tiles.products) == -(-rows // TILE) * panels * steps
    assert sum(tiles.loaded) == panels * steps * TILE + panels // 2 * rows * steps, "two panels at a time"
    assert tiles.loaded[2] + tiles.loaded[3] == panels * steps * TILE + rows * steps


@pytest.mark.parametrize(("kind", "inputs"), [(None, 32), ("int8", 64), ("int4", 64)])
@pytest.mark.parametrize("size", [1024, thorough(3072)])
def test_many_rows_load_a_tile_a_product_and_few_lines_beyond_the_second_cache(
    kind: Quantization | None, inputs: int, size: int
) -> None:
    rows, out = 1024, 512
    tiles = count(kind, out, size, rows)
    steps = size // inputs
    assert tiles.products[TILE] == sum(tiles.products) == rows // TILE * out // TILE * steps
    assert sum(tiles.loaded) == sum(tiles.products) * TILE, "two tiles of rows by two of outputs"
    blocks = -(-rows * steps * 64 // (1 << 20))  # of rows that stay in the second cache
    assert tiles.loaded[2] + tiles.loaded[3] < 1.1 * (rows * steps + blocks * out * steps)


def test_int8_finds_rows_in_the_first_cache_again() -> None:
    there, back = count(None, 512, 1024, 512), count("int8", 512, 1024, 512)
    assert there.loaded[0] == 0
    assert back.loaded[0] / sum(back.loaded) > 0.08


@pytest.mark.parametrize(("tokens", "most", "most_from_memory"), [(512, 1.1, 0.7), (1024, 2.8, 0.35)])
def test_a_prompt_rarely_loads_keys_and_values_from_beyond_the_second_cache(
    tokens: int, most: float, most_from_memory: float
) -> None:
    """Lines a product, of sixteen. From memory each comes once, wherever it lies. How many come again from the third
    cache depends on which sets of the second the addresses of the arrays share, which the process's memory decides:
    32 runs had 0.64 to 0.99 (512 tokens) and 1.36 to 2.58 (1,024)."""
    layer = Layer(QWEN, "bfloat16", ISA)
    sequence = layer.new(tokens)
    with _native.TileCounter() as tiles:
        layer.step((sequence, tokens))
    again, from_memory = (lines / sum(tiles.products) for lines in tiles.loaded[2:])
    assert from_memory < most_from_memory
    assert again + from_memory < most


def test_tiles_are_counted_once_at_a_time() -> None:
    with _native.TileCounter(), pytest.raises(RuntimeError, match="already"), _native.TileCounter():
        pass
    with _native.TileCounter() as tiles:
        pass
    assert sum(tiles.products) == 0
