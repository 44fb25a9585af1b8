"""Every format of weights: a row of a product has the same bits whatever is computed beside it, and rows come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.linear import Norm
from kvarn.kernels.weights import Weight

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from packing import int4_weight, int8_weight, pack_linear, sub_scaled_weight  # noqa: E402
from random_rows import random_weight  # noqa: E402

FORMATS: dict[str, Callable[[int, int], Weight]] = {
    "float32": lambda out, size: Weight(random_weight(out, size, torch.float32)),
    "bfloat16": lambda out, size: Weight(random_weight(out, size, torch.bfloat16)),
    "int8": int8_weight,
    "int4 with zeros": lambda out, size: int4_weight(out, size, 128, True),
    "int4 with sub-scales": sub_scaled_weight,
}
every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
def test_alone_and_among_any_number(isa: str, name: str) -> None:
    backend, x, norm, make = _native.Backend(isa), torch.randn(64, 550), Norm(torch.randn(550), 1e-6), FORMATS[name]
    gated, biased = (
        pack_linear(backend, make(70, 550), None, "silu"),
        pack_linear(backend, make(70, 550), torch.ones(70)),
    )
    for layer, before in ((gated, norm), (biased, None)):
        alone = torch.cat([layer(row, norm=before) for row in x.split(1)])
        for rows in range(1, 65):
            assert torch.equal(layer(x[:rows], norm=before), alone[:rows]), rows


@every_format
@pytest.mark.parametrize("threads", [1, 2])
def test_in_the_longest_prompt_and_on_any_number_of_threads(isa: str, name: str, threads: int) -> None:
    x, packed = torch.randn(2048, 70), pack_linear(_native.Backend(isa), FORMATS[name](20, 70))
    alone = torch.cat([packed(row) for row in x.split(1)])
    torch.set_num_threads(threads)
    try:
        for rows in (2047, 2048):
            assert torch.equal(packed(x[:rows]), alone[:rows])
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["bfloat16", "int8", "int4 with sub-scales"])
def test_among_more_bytes_of_rows_and_weights_than_stay_in_a_cache_together(isa: str, name: str) -> None:
    packed, x = pack_linear(_native.Backend(isa), FORMATS[name](300, 1100)), torch.randn(2048, 1100)
    alone = torch.cat([packed(x[row : row + 1]) for row in range(0, 2048, 97)])
    assert torch.equal(packed(x)[::97], alone)


@every_format
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_shows_and_spoils_no_other(isa: str, name: str, bad: float) -> None:
    packed = pack_linear(_native.Backend(isa), FORMATS[name](20, 70))
    for rows in (7, 40, 300):
        x = torch.randn(rows, 70)
        sound = packed(x)
        x[3, 41] = bad
        found = packed(x)
        assert not found[3].isfinite().any()
        others = [row for row in range(rows) if row != 3]
        assert torch.equal(found[others], sound[others])


@every_format
@pytest.mark.parametrize("activation", [None, "silu"])
def test_rows_come_back_as_the_numbers_they_stand_for(name: str, activation: Activation | None) -> None:
    for out, size in [(2, 1), (38, 51), (128, 64), (170, 1025)]:
        weight = FORMATS[name](out, size)
        packed = pack_linear(_native.Backend("generic"), weight, None, activation)
        assert torch.equal(packed.rows(torch.arange(out)), weight.dequantized())
        ids = torch.randint(out, (77,))
        assert torch.equal(packed.rows(ids), weight.dequantized()[ids])
    assert packed.rows(torch.tensor([], dtype=torch.int64)).shape == (0, size)
