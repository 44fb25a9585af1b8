"""Products of plain weights, of the reference and of each instruction set, with all that is done beside them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.batch import Rotation
from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.torch.attention import rotate
from kvarn.kernels.torch.linear import TorchLinear
from kvarn.kernels.weights import Weight
from random_rows import in_rows_of_nan, poison_freed_memory, random_weight

FLOATS = [torch.float32, torch.bfloat16]
ROWS = [0, 1, 2, 3, 5, 7, 13, 29]


def activated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def inputs_of(
    kernels: Kernels, layer: Linear, dtype: torch.dtype, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x as the layer takes it and as it multiplies it, in float64: bfloat16 by bfloat16 where the kernels do that."""
    if dtype == torch.float32:
        return x, x.double()
    if isinstance(layer, TorchLinear):
        taken = x.to(torch.bfloat16 if layer.packs else torch.float32)
        return taken, taken.double()
    return x, x.bfloat16().double() if kernels.name.endswith(("bf16)", "amx)")) else x.double()


def tolerance(taken: torch.Tensor, factor: float = 1.0) -> dict[str, float]:
    """Results are rounded to bfloat16 where inputs are."""
    return (
        {"atol": 0.05, "rtol": 0.02}
        if taken.dtype == torch.bfloat16
        else {"atol": factor * 2e-5, "rtol": factor * 1e-5}
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("out", "size"), [(1, 1), (16, 64), (37, 50), (96, 259), (170, 1025)])
def test_products_equal_those_in_float64(every_kernels: Kernels, out: int, size: int, dtype: torch.dtype) -> None:
    weight, bias = random_weight(out, size, dtype), torch.randn(out)
    plain, biased = (every_kernels.packer.pack_linear(Weight(weight), each) for each in (None, bias.to(dtype)))
    assert (plain.out_features, plain.in_features) == (out, size)
    for rows in (*ROWS, 203) if out == 96 else ROWS:
        x, multiplied = inputs_of(every_kernels, plain, dtype, in_rows_of_nan(torch.randn(rows, size)))
        want = multiplied @ weight.double().T
        poison_freed_memory(rows * out)
        torch.testing.assert_close(plain(x).double(), want, **tolerance(x))
        torch.testing.assert_close(biased(x).double(), want + bias.to(dtype).double(), **tolerance(x))


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("size", [1, 50, 259])
def test_a_norm_of_the_input_comes_first(every_kernels: Kernels, rows: int, size: int) -> None:
    norm, weight = Norm(torch.randn(size), 1e-3), random_weight(33, size, torch.float32)
    x = in_rows_of_nan(torch.randn(rows, size))
    scale = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + norm.eps)
    want = (x.double() * scale * norm.weight.double()) @ weight.double().T
    found = every_kernels.packer.pack_linear(Weight(weight))(x, norm=norm)
    torch.testing.assert_close(found.double(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_gated_weight_multiplies_the_activated_gate_by_up(
    every_kernels: Kernels, activation: Activation, dtype: torch.dtype
) -> None:
    for half, size in [(1, 3), (16, 64), (41, 70), (100, 300)]:
        weight, bias = 3 * random_weight(2 * half, size, dtype), torch.randn(2 * half).to(dtype)
        layer = every_kernels.packer.pack_linear(Weight(weight), bias, activation)
        assert layer.out_features == half
        for rows in (1, 3, 9, 33):
            x, multiplied = inputs_of(every_kernels, layer, dtype, torch.randn(rows, size))
            gate, up = (multiplied @ weight.double().T + bias.double()).chunk(2, -1)
            poison_freed_memory(rows * half)
            torch.testing.assert_close(layer(x).double(), activated(gate, activation) * up, **tolerance(x, 2.5))


@pytest.mark.parametrize("activation", [None, "silu"])
def test_the_result_is_added_to_add_to(every_kernels: Kernels, activation: Activation | None) -> None:
    x, weight = torch.randn(11, 70), Weight(random_weight(50, 70, torch.float32))
    layer = every_kernels.packer.pack_linear(weight, torch.randn(50), activation)
    around = torch.randn(11, layer.out_features + 9)
    before = around.clone()
    assert layer(x, add_to=around[:, 4:-5]).data_ptr() == around[:, 4:-5].data_ptr()
    assert torch.equal(around[:, 4:-5], before[:, 4:-5] + layer(x))
    assert torch.equal(around[:, :4], before[:, :4]) and torch.equal(around[:, -5:], before[:, -5:])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_activation_in_torch_keeps_infinity_on_every_processor(activation: Activation, dtype: torch.dtype) -> None:
    """Torch's GELU of infinity is NaN where oneDNN computes it with AVX-512."""
    x = torch.tensor([math.inf, math.nan, -math.inf, 40.0, 0.0] * 8, dtype=dtype)
    want = torch.tensor([math.inf, math.nan, math.nan, 40.0, 0.0] * 8, dtype=dtype)
    torch.testing.assert_close(torch_kernels().operations.activation(x, activation), want, equal_nan=True)


@pytest.mark.parametrize("rotated", [4, 10])
def test_rope_rotates_pairs_by_their_angle_and_leaves_the_rest(rotated: int) -> None:
    x, angles, half = torch.randn(5, 3, 10), torch.randn(5, rotated // 2), rotated // 2
    found = rotate(x, Rotation(angles.cos(), angles.sin()))
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    want = torch.complex(x[..., :half], x[..., half:rotated]) * turns
    torch.testing.assert_close(torch.complex(found[..., :half], found[..., half:rotated]), want)
    assert torch.equal(found[..., rotated:], x[..., rotated:])
