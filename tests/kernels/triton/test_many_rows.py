"""Products by tiles that the copy engine brings, against the kernel for any number of rows: the same bits."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.triton import linear, many_rows
from kvarn.kernels.triton.tiles import MANY_ROWS_FROM, many_rows_from_tiles
from kvarn.kernels.weights import Weight

ROWS = 300
"""Two tiles of rows, or three, none of which the last one fills."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product that the kernel for many rows computed. One tile is enough for it."""
    found: list[int] = []
    launch = linear.multiply_many

    def counted(x: torch.Tensor, *arguments: object, **options: object) -> None:
        found.append(len(x))
        launch(x, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(linear, "multiply_many", counted)
    monkeypatch.setattr(many_rows, "many_rows_from_tiles", lambda *_: 1)
    return found


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        pytest.param(520, 136, id="two splits, none full", marks=pytest.mark.sample),
        pytest.param(128, 72, id="one split, one tile that is not full"),
        pytest.param(768, 264, id="more tiles than programs"),
    ],
)
@pytest.mark.parametrize("gated", [False, True])
def test_many_rows_have_the_bits_that_they_have_in_small_steps(
    kernels: Kernels, launched: list[int], inputs: int, outputs: int, gated: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs * (2 if gated else 1), inputs, generator=generator) / inputs**0.5
    bias = torch.randn(len(weight), generator=generator)
    layer = kernels.packer.pack_linear(Weight(weight.bfloat16()), bias, "silu" if gated else None)
    x = torch.randn(ROWS, inputs, generator=generator).bfloat16()
    stream = torch.randn(ROWS, outputs, generator=generator).bfloat16()
    found = layer(x, add_to=stream.clone())
    assert launched == [ROWS]
    few = [layer(x[at : at + 100], add_to=stream[at : at + 100].clone()) for at in range(0, ROWS, 100)]
    assert launched == [ROWS], "fewer rows are computed as before"
    assert torch.equal(found, torch.cat(few))


def test_what_the_copy_engine_cannot_bring_is_computed_as_before(kernels: Kernels, launched: list[int]) -> None:
    x = torch.randn(ROWS, 132).bfloat16()
    for numbers in (x[:, :130], x[:, 2:130]):  # strides and addresses that are not multiples of 16 bytes
        weight = torch.randn(72, numbers.shape[1]).bfloat16()
        found = kernels.packer.pack_linear(Weight(weight))(numbers)
        torch.testing.assert_close(found.float(), numbers.float() @ weight.float().T, atol=0.1, rtol=0.02)
    kernels.packer.pack_linear(kernels.packer.quantize(torch.randn(72, 128), "int8"))(x[:, :128].contiguous().float())
    assert launched == []


def test_longer_sums_need_more_tiles() -> None:
    assert MANY_ROWS_FROM == 129, "a whole tile of rows and more"
    tiles = [many_rows_from_tiles(inputs, gated=False) for inputs in (1024, 4096, 14336)]
    assert tiles == [24, 36, 76]
    assert many_rows_from_tiles(4096, gated=True) == 48
