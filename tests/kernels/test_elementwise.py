"""Norms, rotary embedding, activations and products against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from kvarn.kernels.dispatch import UnknownBackendError, kernels_for

KERNELS = kernels_for("torch")


@pytest.mark.parametrize("shape", [(1, 3), (7, 64), (5, 3, 17)])
def test_rms_norm_equals_its_definition(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    want = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-3) * weight
    torch.testing.assert_close(KERNELS.rms_norm(x, weight, 1e-3), want)


def test_rms_norm_of_a_shard_uses_the_mean_square_it_is_given() -> None:
    x, weight = torch.randn(4, 10), torch.randn(10)
    whole = KERNELS.rms_norm(x, weight, 1e-6)
    mean_square = x.square().mean(-1, keepdim=True)
    shard = KERNELS.rms_norm(x[:, 3:7], weight[3:7], 1e-6, mean_square)
    torch.testing.assert_close(shard, whole[:, 3:7])


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    x = (torch.randn(3, 256) * 100).bfloat16()
    want = x.double() / torch.sqrt((x.double() ** 2).mean(-1, keepdim=True))
    found = KERNELS.rms_norm(x, torch.ones(256), 0.0)
    assert torch.equal(found, want.bfloat16())


@pytest.mark.parametrize("rotated", [4, 10])
def test_rope_rotates_pairs_by_their_angle_and_leaves_the_rest(rotated: int) -> None:
    tokens, heads, dim, half = 5, 3, 10, rotated // 2
    x = torch.randn(tokens, heads, dim)
    angles = torch.randn(tokens, half)
    found = KERNELS.rope(x, angles.cos(), angles.sin())
    for token in range(tokens):
        for i in range(half):
            turn = complex(math.cos(angles[token, i]), math.sin(angles[token, i]))
            for head in range(heads):
                want = complex(x[token, head, i], x[token, head, i + half]) * turn
                got = complex(found[token, head, i], found[token, head, i + half])
                assert got == pytest.approx(want, abs=1e-5)
    assert torch.equal(found[..., rotated:], x[..., rotated:])


def test_gated_activations_equal_their_definitions() -> None:
    gate_up = torch.randn(6, 14)
    gate, up = gate_up[:, :7], gate_up[:, 7:]
    silu = gate / (1 + torch.exp(-gate)) * up
    tanh = gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up
    erf = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))) * up
    torch.testing.assert_close(KERNELS.gated_activation(gate_up, "silu"), silu)
    torch.testing.assert_close(KERNELS.gated_activation(gate_up, "gelu_tanh"), tanh)
    torch.testing.assert_close(KERNELS.gated_activation(gate_up, "gelu"), erf)


@pytest.mark.parametrize("rows", [0, 1, 3, 8, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_packed_products_equal_the_plain_one(rows: int, dtype: torch.dtype, with_bias: bool) -> None:
    weight, x = torch.randn(37, 50).to(dtype), torch.randn(rows, 50).to(dtype)
    bias = torch.randn(37).to(dtype) if with_bias else None
    packed = KERNELS.pack_linear(weight, bias)
    want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    found = KERNELS.linear(x, packed)
    assert (packed.out_features, packed.in_features, found.dtype) == (37, 50, dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found.double(), want, atol=tolerance, rtol=tolerance / 3)


def test_an_unknown_backend_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownBackendError, match="torch"):
        kernels_for("abacus")
