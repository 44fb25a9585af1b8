"""Norms, rotary embedding, activations and products against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.batch import Rotation
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.linear import Norm
from kvarn.kernels.torch.attention import rotate
from kvarn.kernels.weights import Weight

KERNELS = kernels_for("torch")


@pytest.mark.parametrize("shape", [(1, 3), (7, 64), (5, 3, 17)])
def test_rms_norm_equals_its_definition(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    want = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-3) * weight
    torch.testing.assert_close(KERNELS.operations.rms_norm(x, Norm(weight, 1e-3)), want)


def test_rms_norm_of_a_shard_uses_the_mean_square_it_is_given() -> None:
    x, weight = torch.randn(4, 10), torch.randn(10)
    whole = KERNELS.operations.rms_norm(x, Norm(weight, 1e-6))
    mean_square = x.square().mean(-1, keepdim=True)
    shard = KERNELS.operations.rms_norm(x[:, 3:7], Norm(weight[3:7], 1e-6), mean_square=mean_square)
    torch.testing.assert_close(shard, whole[:, 3:7])


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    x = (torch.randn(3, 256) * 100).bfloat16()
    want = x.double() / torch.sqrt((x.double() ** 2).mean(-1, keepdim=True))
    found = KERNELS.operations.rms_norm(x, Norm(torch.ones(256), 0.0))
    assert torch.equal(found, want.bfloat16())


@pytest.mark.parametrize("rotated", [4, 10])
def test_rope_rotates_pairs_by_their_angle_and_leaves_the_rest(rotated: int) -> None:
    tokens, heads, dim, half = 5, 3, 10, rotated // 2
    x = torch.randn(tokens, heads, dim)
    angles = torch.randn(tokens, half)
    found = rotate(x, Rotation(angles.cos(), angles.sin()))
    for token in range(tokens):
        for i in range(half):
            turn = complex(math.cos(angles[token, i]), math.sin(angles[token, i]))
            for head in range(heads):
                want = complex(x[token, head, i], x[token, head, i + half]) * turn
                got = complex(found[token, head, i], found[token, head, i + half])
                assert got == pytest.approx(want, abs=1e-5)
    assert torch.equal(found[..., rotated:], x[..., rotated:])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_a_gated_weight_gives_its_definition(activation: Activation) -> None:
    weight, x = torch.randn(14, 5), torch.randn(6, 5)
    gate, up = x @ weight[:7].T, x @ weight[7:].T
    activated = {
        "silu": gate / (1 + torch.exp(-gate)),
        "gelu_tanh": gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))),
        "gelu": gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))),
    }[activation]
    packed = KERNELS.packer.pack_linear(Weight(weight), None, activation)
    assert packed.out_features == 7
    torch.testing.assert_close(packed(x), activated * up, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_activation_keeps_infinity_on_every_processor(activation: Activation, dtype: torch.dtype) -> None:
    """Torch's GELU of infinity is NaN where oneDNN computes it with AVX-512."""
    x = torch.tensor([math.inf, math.nan, -math.inf, 40.0, 0.0] * 8, dtype=dtype)
    want = torch.tensor([math.inf, math.nan, math.nan, 40.0, 0.0] * 8, dtype=dtype)
    torch.testing.assert_close(KERNELS.operations.activation(x, activation), want, equal_nan=True)


def test_a_product_norms_its_input_and_adds_to_the_stream() -> None:
    weight, x, stream = torch.randn(7, 5), torch.randn(6, 5), torch.randn(6, 7)
    norm = Norm(torch.randn(5), 1e-5)
    want = stream + KERNELS.operations.rms_norm(x, norm) @ weight.T
    found = KERNELS.packer.pack_linear(Weight(weight))(x, norm=norm, add_to=stream)
    assert found is stream
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("rows", [0, 1, 3, 8, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_packed_products_equal_the_plain_one(rows: int, dtype: torch.dtype, with_bias: bool) -> None:
    weight, x = torch.randn(37, 50).to(dtype), torch.randn(rows, 50).to(dtype)
    bias = torch.randn(37).to(dtype) if with_bias else None
    packed = KERNELS.packer.pack_linear(Weight(weight), bias)
    want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    found = packed(x)
    assert (packed.out_features, packed.in_features, found.dtype) == (37, 50, dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found.double(), want, atol=tolerance, rtol=tolerance / 3)
