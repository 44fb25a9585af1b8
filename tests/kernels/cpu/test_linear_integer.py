"""Packed int8 and int4 linear layers: bit for bit what `csrc/linear/integer.cpp` defines, on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kvarn.kernels.linear import Norm
from kvarn.kernels.weights import Weight

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.kernels.cpu.packing import MAX_INT8_INPUTS  # noqa: E402
from kvarn.kernels.errors import KernelInputError  # noqa: E402
from packing import int4_weight, int8_weight, pack_linear, sub_scaled_weight  # noqa: E402
from random_rows import fused, in_rows_of_nan, poison_freed_memory  # noqa: E402

SHAPES = [(1, 1), (16, 64), (37, 50), (40, 259), (33, 1100)]
GROUPS = [32, 96, 128]


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [T, K] as whole numbers int64 and a scale each [T, 1]."""
    peak = x.abs().amax(-1, keepdim=True)
    inverse = torch.full_like(peak, 127.0) / peak  # torch takes 127 / peak for 127 * (1 / peak), rounded twice
    usable = torch.isfinite(inverse)
    q = (x * inverse.where(usable, 0.0)).round().clamp(-127, 127).long()
    return q, (peak / 127).where(usable, 0.0)


def int8_products(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    q, scale = quantized(x)
    return (q @ weight.values.long().T).float() * (scale * weight.scales)


def int4_products(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    zeros = torch.full(weight.scales.shape, 8, dtype=torch.uint8) if weight.zeros is None else weight.zeros
    total = torch.zeros(x.shape[0], weight.values.shape[0])
    block = 32 if weight.group % 128 else 128
    for first in range(0, x.shape[1], block):
        group = first // weight.group
        q, scale = quantized(x[:, first : first + block])
        centred = weight.values[:, first : first + block].long() - zeros[:, group, None].long()
        if weight.sub_scales is not None:
            sub_scales = weight.sub_scales.long().repeat_interleave(32, 1)
            centred *= sub_scales[:, first : first + centred.shape[1]]
        scales = scale * weight.scales[:, group].float()
        total = torch.from_numpy(fused((q @ centred.T).float().numpy(), scales.numpy(), total.numpy()))
    return total


def products(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """x [T, in] times the weight, as the kernels define it: [T, out]."""
    return int8_products(x, weight) if weight.format == "int8" else int4_products(x, weight)


def weights_of(out: int, in_features: int) -> list[Weight]:
    """One weight of every kind."""
    kinds = [(group, has_zeros) for group in GROUPS for has_zeros in (False, True)]
    multiplied = [sub_scaled_weight(out, in_features), sub_scaled_weight(out, in_features, 256)]
    return [int8_weight(out, in_features), *(int4_weight(out, in_features, *kind) for kind in kinds), *multiplied]


@pytest.mark.parametrize(("out", "in_features"), SHAPES)
def test_products_equal_their_definition_bit_for_bit(isa: str, out: int, in_features: int) -> None:
    backend, bias = _native.Backend(isa), torch.randn(out)
    for weight in weights_of(out, in_features):
        plain, biased = pack_linear(backend, weight), pack_linear(backend, weight, bias)
        for rows in (0, 1, 2, 3, 4, 5, 7, 14, 17, 29, 35):
            x = in_rows_of_nan(torch.randn(rows, in_features))
            want = products(x, weight)
            poison_freed_memory(rows * out)
            assert torch.equal(plain(x), want)
            assert torch.equal(biased(x), want + bias)


def test_extreme_inputs_and_weights_keep_to_the_definition(isa: str) -> None:
    ordinary = torch.randn(160)
    outlier = ordinary.clone()
    outlier[71] = 1e6
    rows = [
        torch.zeros(160),
        torch.full((160,), 3e38),
        torch.full((160,), -1.0),
        torch.tensor([1.0, -1.0]).repeat(80),
        outlier,
        ordinary * 1e-36,
        torch.full((160,), 1e-40),
        torch.arange(160) / 127 - 0.5,
    ]
    x = torch.stack(rows)
    lowest = torch.full((20, 160), -128, dtype=torch.int8)
    small = torch.full((20, 5), 6e-8).half()
    high, low = torch.full((20, 160), 15, dtype=torch.uint8), torch.zeros(20, 160, dtype=torch.uint8)
    for weight in (
        Weight(lowest, torch.full((20,), 1e-3)),
        Weight(lowest + 255, torch.full((20,), 1e-3)),
        Weight(high, small, torch.zeros(20, 5, dtype=torch.uint8), 32),
        Weight(low, small, torch.full((20, 5), 16, dtype=torch.uint8), 32),
        Weight(low, -small, None, 32),
        Weight(low, small[:, :2], None, 128, sub_scales=torch.full((20, 5), -15, dtype=torch.int8)),
        Weight(high, small[:, :2], None, 128, sub_scales=torch.full((20, 5), 15, dtype=torch.int8)),
    ):
        packed = pack_linear(_native.Backend(isa), weight)
        for few in (x[:1], x[:3], x, x.repeat(3, 1)):
            assert torch.equal(packed(few), products(few, weight))


def test_sums_of_as_many_extreme_products_as_are_allowed_fit(isa: str) -> None:
    weight = Weight(torch.full((3, MAX_INT8_INPUTS), -128, dtype=torch.int8), torch.ones(3))
    packed = pack_linear(_native.Backend(isa), weight)
    for rows in (1, 6):
        x = torch.full((rows, MAX_INT8_INPUTS), 127.0)
        assert torch.equal(packed(x), torch.full((rows, 3), -128.0 * 127 * MAX_INT8_INPUTS))
        assert torch.equal(packed(-x), torch.full((rows, 3), 128.0 * 127 * MAX_INT8_INPUTS))


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_a_norm_of_the_input_comes_first(isa: str, rows: int) -> None:
    """The norm kernel's own rows give the same bits: quantizing is fused with it, not changed by it."""
    for in_features in (1, 50, 259):
        backend, x = _native.Backend(isa), torch.randn(rows, in_features)
        norm, normed = Norm(torch.randn(in_features), 1e-3), torch.empty(rows, in_features)
        backend.rms_norm(
            x.data_ptr(), rows, in_features, in_features, norm.weight.data_ptr(), norm.eps, normed.data_ptr(),
            in_features, False,
        )  # fmt: skip
        for weight in (int8_weight(33, in_features), int4_weight(33, in_features, 64)):
            found = pack_linear(backend, weight)(in_rows_of_nan(x), norm=norm)
            assert torch.equal(found, products(normed, weight))


def test_a_gated_weight_multiplies_the_activated_gate_by_up(isa: str) -> None:
    for half, in_features in [(1, 3), (16, 64), (41, 70)]:
        for weight in weights_of(2 * half, in_features):
            packed = pack_linear(_native.Backend(isa), weight, None, "silu")
            for rows in (1, 6, 33):
                x = torch.randn(rows, in_features)
                gate, up = products(x, weight).double().chunk(2, -1)
                poison_freed_memory(rows * half)
                torch.testing.assert_close(packed(x).double(), F.silu(gate) * up, atol=1e-6, rtol=1e-5)


def test_the_result_is_added_last_to_add_to(isa: str) -> None:
    for rows in (1, 11):
        x = torch.randn(rows, 70)
        for weight in (int8_weight(50, 70), int4_weight(50, 70)):
            bias, around = torch.randn(50), torch.randn(rows, 59)
            before = around.clone()
            pack_linear(_native.Backend(isa), weight, bias)(x, add_to=around[:, 4:-5])
            assert torch.equal(around[:, 4:-5], before[:, 4:-5] + (products(x, weight) + bias))
            assert torch.equal(around[:, :4], before[:, :4]) and torch.equal(around[:, -5:], before[:, -5:])


def test_int4_takes_half_the_memory_of_int8() -> None:
    backend = _native.Backend("generic")
    small, large = pack_linear(backend, int4_weight(64, 1024, 128)), pack_linear(backend, int8_weight(64, 1024))
    assert small.nbytes == 64 * 1024 // 2 + 64 * 8 * 2
    assert large.nbytes == 64 * 1024 + 64 * 8


def test_weights_that_cannot_be_packed_are_refused() -> None:
    backend, int8, int4 = _native.Backend("generic"), int8_weight(6, 64), int4_weight(6, 64, 32, True)
    assert int4.zeros is not None
    for wrong, message in [
        (Weight(int8.values, int8.scales[:5]), "6 float32 scales"),
        (Weight(int8.values.float(), int8.scales), "int8 values"),
        (int8_weight(1, MAX_INT8_INPUTS + 1), f"at most {MAX_INT8_INPUTS} inputs"),
        (Weight(int4.values + 1, int4.scales, None, 32), "0 to 15"),
        (Weight(int4.values, int4.scales.float(), None, 32), "float16 scales"),
        (Weight(int4.values, int4.scales, None, 64), r"\[6, 1\]"),
        (Weight(int4.values, int4.scales, None, 48), "multiple of 32"),
        (Weight(int4.values, int4.scales, int4.zeros + 17, 32), "0 to 16"),
        (replace(int4, sub_scales=torch.ones((6, 2), dtype=torch.int8)), "no zero points"),
        (replace(sub_scaled_weight(6, 64), sub_scales=torch.full((6, 2), 16, dtype=torch.int8)), "-15 to 15"),
    ]:
        with pytest.raises(KernelInputError, match=message):
            pack_linear(backend, wrong)
