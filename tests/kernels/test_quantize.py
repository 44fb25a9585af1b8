"""Plain weights quantized, in torch and by the compiled kernels of every instruction set: bits, and what is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.kernels.backend import Kernels
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.torch.quantize import quantize
from kvarn.kernels.weights import Quantization, Weight
from profiles import examples


def random_weight(rows: int, columns: int, size: float = 0.03, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size


def relative_error(weight: torch.Tensor, quantized: Weight) -> float:
    return float((quantized.dequantized() - weight).norm() / weight.norm())


def test_int8_is_within_half_a_step_of_every_weight() -> None:
    weight = random_weight(70, 130)
    quantized = quantize(weight, "int8")
    assert quantized.scales is not None
    assert (quantized.dequantized() - weight).abs().le(quantized.scales[:, None] * 0.5001).all()
    assert quantized.values.abs().amax(1).eq(127).all()


def test_int4_loses_less_than_rounding_to_the_largest_weight() -> None:
    weight = random_weight(64, 256)
    groups = weight.view(-1, 32)
    scales = (groups.abs().amax(1, keepdim=True) / 7).half().float()
    rounded = (groups / scales).round() * scales
    simple = float((rounded - groups).norm() / groups.norm())
    assert relative_error(weight, quantize(weight, "int4")) < 0.88 * simple


@settings(max_examples=examples(40))
@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from([1e-3, 1.0, 300.0]), st.integers(0, 1000))
def test_any_shape_and_size_is_quantized_within_its_type(rows: int, columns: int, size: float, seed: int) -> None:
    weight = random_weight(rows, columns, size, seed)
    weight[0] = 0
    int8, int4 = quantize(weight, "int8"), quantize(weight, "int4")
    assert int8.values.shape == int4.values.shape == weight.shape
    assert int4.scales is not None and int4.scales.shape == (rows, -(-columns // 128))
    assert int4.sub_scales is not None and int4.sub_scales.shape == (rows, -(-columns // 32))
    assert int(int4.sub_scales.abs().max()) <= 15
    assert int(int4.values.max()) <= 15
    assert int(int8.values.abs().max()) <= 127
    assert torch.equal(int8.dequantized()[0], weight[0])
    assert torch.equal(int4.dequantized()[0], weight[0])
    assert (int4.dequantized() - weight).norm() <= 0.2 * weight.norm() + 1e-5


@pytest.mark.parametrize("value", [torch.bfloat16, torch.float16])
def test_half_types_are_quantized_as_the_numbers_they_are(value: torch.dtype) -> None:
    weight = random_weight(8, 64).to(value)
    for to in ("int8", "int4"):
        assert torch.equal(quantize(weight, to).dequantized(), quantize(weight.float(), to).dequantized())


@pytest.mark.parametrize("damage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("to", ["int8", "int4"])
def test_a_number_that_is_not_finite_does_not_vanish(every_kernels: Kernels, to: Quantization, damage: float) -> None:
    weight = random_weight(40, 300)
    weight[17, 140] = damage
    rows = every_kernels.packer.pack_plain([weight], to).rows(torch.arange(40))
    assert rows.isfinite().all(1).tolist() == [row != 17 for row in range(40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_is_the_nearest_of_its_numbers_and_the_largest_weight_the_largest_of_them(dtype: torch.dtype) -> None:
    weight = random_weight(20, 130).to(dtype)
    weight[3] = 0
    quantized = kernels_for("torch").packer.quantize(weight, "fp8")
    assert quantized.format == "fp8" and quantized.scales is not None
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()]
    scaled = weight.double() / quantized.scales[:, None].clamp(min=1e-30).double()
    nearest = (scaled[..., None] - every.double()).abs().amin(-1)
    # The scale is rounded, and so is the quotient: a tie may go either way.
    assert ((quantized.values.double() - scaled).abs() <= nearest * (1 + 1e-4) + 1e-4).all()
    assert quantized.values.float().abs().amax(1).eq(448).sum() == 19
    assert torch.equal(quantized.dequantized()[3], torch.zeros(130))
