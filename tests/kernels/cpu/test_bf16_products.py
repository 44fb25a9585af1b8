"""Products of bfloat16 by bfloat16 as AMX and AVX-512 BF16 define them, run or emulated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from packing import pack_linear  # noqa: E402
from random_rows import fused  # noqa: E402


def tile_products(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """TDPBF16PS on tiles of 32 inputs: even and odd inputs in chains of their own, their sum added to the result."""
    sums = np.zeros((len(x), len(w)), np.float32)
    for first in range(0, x.shape[1], 32):
        even, odd = np.zeros_like(sums), np.zeros_like(sums)
        for k in range(first, first + 32, 2):
            even = fused(x[:, k : k + 1], w[:, k], even)
            odd = fused(x[:, k + 1 : k + 2], w[:, k + 1], odd)
        sums = sums + (even + odd)
    return sums


def pair_products(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """VDPBF16PS: the second of each pair of inputs, then the first."""
    sums = np.zeros((len(x), len(w)), np.float32)
    for k in range(0, x.shape[1], 2):
        sums = fused(x[:, k + 1 : k + 2], w[:, k + 1], sums)
        sums = fused(x[:, k : k + 1], w[:, k], sums)
    return sums


DEFINITIONS = {
    "amx": tile_products,
    "emulated_amx": tile_products,
    "avx512_bf16": pair_products,
    "emulated_avx512_bf16": pair_products,
}
HERE = _native.usable_instruction_sets() + _native.emulated_instruction_sets()


@pytest.fixture(params=[name for name in HERE if name in DEFINITIONS])
def bf16_isa(request: pytest.FixtureRequest) -> str:
    """Each set that multiplies bfloat16 by bfloat16."""
    name: str = request.param
    return name


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 16), (5, 100, 50), (18, 600, 33), (75, 1100, 90)])
def test_sums_have_the_bits_of_the_definition(bf16_isa: str, rows: int, inputs: int, outputs: int) -> None:
    x, weight = torch.randn(rows, inputs).bfloat16(), torch.randn(outputs, inputs).bfloat16()
    padding = (0, -inputs % 64)
    operands = (torch.nn.functional.pad(t.float(), padding).numpy() for t in (x, weight))
    found = pack_linear(_native.Backend(bf16_isa), weight)(x.float())
    assert np.array_equal(found.numpy(), DEFINITIONS[bf16_isa](*operands))


def test_inputs_are_rounded_to_the_nearest_bfloat16(bf16_isa: str) -> None:
    x = torch.cat([torch.randn(64), torch.tensor([1.00390625, 1.01171875, -3e38, float("inf"), float("nan"), 0.0])])
    found = pack_linear(_native.Backend(bf16_isa), torch.ones(1, 1).bfloat16())(x[:, None])
    assert torch.equal(found.flatten().nan_to_num(7.0), x.bfloat16().float().nan_to_num(7.0))


def test_denormal_numbers_count_as_zero(bf16_isa: str) -> None:
    small = 2.0**-130
    x = torch.tensor([[small, 2.0**-70]])
    one_of_each = pack_linear(_native.Backend(bf16_isa), torch.tensor([[1.0, 0.0], [0.0, 2.0**-70]]).bfloat16())
    assert torch.equal(one_of_each(x), torch.zeros(1, 2))
    assert float(torch.tensor([small]) * 2) == 2 * small, "the thread's own rounding is as it was"


@pytest.mark.parametrize("rows", [1, 40])
def test_denormal_numbers_that_products_are_added_to_stay(bf16_isa: str, rows: int) -> None:
    packed = pack_linear(_native.Backend(bf16_isa), torch.ones(20, 64).bfloat16())
    out = torch.full((rows, 20), 1e-40)
    packed(torch.zeros(rows, 64), add_to=out)
    assert torch.equal(out, torch.full((rows, 20), 1e-40))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 31, 32, 33, 47, 65, 257, 300])
@pytest.mark.parametrize("panels", [1, 2, 3, 5, 9])
def test_every_shape_of_block_gives_a_row_the_same_bits(bf16_isa: str, rows: int, panels: int) -> None:
    x, weight = torch.randn(rows, 1090), torch.randn(16 * panels - 3, 1090).bfloat16()
    packed = pack_linear(_native.Backend(bf16_isa), weight)
    alone = torch.cat([packed(x[r : r + 1]) for r in sorted({0, rows // 2, rows - 1})])
    assert torch.equal(packed(x)[sorted({0, rows // 2, rows - 1})], alone)
