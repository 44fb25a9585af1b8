"""The exponential and the activations of every instruction set over the whole range of float32, against float64."""

from __future__ import annotations

import math

import pytest
import torch

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.kernels.activation import Activation  # noqa: E402
from kvarn.kernels.cpu.backend import cpu_kernels  # noqa: E402
from kvarn.kernels.errors import KernelInputError  # noqa: E402
from packing import pack_linear  # noqa: E402

ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]
ULP = 2.0**-23
LOWEST, HIGHEST = -87.3, 88.37
"""Between these the exponential is a normal number."""


def exponential(isa: str, x: torch.Tensor, bits: int) -> torch.Tensor:
    """e^x times 2^bits, rounded to a whole number: a draw's weights of logits x, whose largest is said to be 0."""
    out = torch.full_like(x, -1.0)
    _native.Backend(isa).token_weights(x.data_ptr(), len(x), bits, 0.0, 1.0, 0.0, out.data_ptr())
    return out


def of_all_magnitudes() -> torch.Tensor:
    """Float32 numbers of both signs from the smallest denormal one to the largest, and many of common size."""
    magnitudes = torch.logspace(-45, 38.5, 4001, dtype=torch.float64).float()
    return torch.cat([magnitudes, -magnitudes, torch.linspace(-110, 110, 40_001), torch.zeros(1)])


@pytest.mark.parametrize(("first", "last", "bits"), [(-70.0, -40.0, 127), (-40.0, 20.0, 90), (20.0, HIGHEST, 0)])
def test_the_exponential_is_within_two_units_in_the_last_place(isa: str, first: float, last: float, bits: int) -> None:
    x = torch.linspace(first, last, 200_001).clamp(max=HIGHEST)
    exact = x.double().exp() * 2.0**bits
    found = exponential(isa, x, bits).double()
    assert float(((found - exact).abs() / exact).max()) <= 2 * ULP


def test_the_exponential_of_small_numbers_ends_with_the_normal_ones(isa: str) -> None:
    x = torch.linspace(LOWEST, -70, 10_001).clamp(min=LOWEST)
    exact = x.double().exp() * 2.0**127
    found = exponential(isa, x, 127).double()
    assert torch.all((found - exact).abs() <= 0.5 + 2 * ULP * exact)
    assert not exponential(isa, torch.tensor([-87.31, -88.0, -104.0, -1e30, -math.inf]), 127).any()


def test_the_exponential_of_special_numbers(isa: str) -> None:
    denormal = 1e-42
    assert torch.equal(exponential(isa, torch.tensor([0.0, -0.0, denormal, -denormal]), 0), torch.ones(4))
    assert exponential(isa, torch.tensor([88.38, 89.0, 100.0, 3e38, math.inf]), 0).isposinf().all()
    assert exponential(isa, torch.tensor([math.nan, -math.nan]), 0).isnan().all()


def gated(isa: str, activation: Activation | None, x: torch.Tensor) -> torch.Tensor:
    """activation(x) times 1: the weight of up is 0, its bias 1."""
    weight, bias = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 1.0])
    return pack_linear(_native.Backend(isa), weight, bias, activation)(x[:, None])[:, 0]


def in_float64(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The definition: torch's own activations differ from one processor to the next."""
    x = x.double()
    match activation:
        case "silu":
            return x / (1 + torch.exp(-x))
        case "gelu":
            return x * torch.special.erfc(-x / math.sqrt(2)) / 2
        case "gelu_tanh":
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "sigmoid":
            return 1 / (1 + torch.exp(-x))
        case "tanh":
            return torch.tanh(x)


@pytest.mark.parametrize(
    ("activation", "absolute"),
    [("silu", 1e-36), ("gelu", 2e-7), ("gelu_tanh", 4e-7), ("sigmoid", 1e-37), ("tanh", 2.5e-7)],
)
def test_activations_of_all_finite_numbers_equal_those_in_float64(
    isa: str, activation: Activation, absolute: float
) -> None:
    x = of_all_magnitudes()
    found = [cpu_kernels(isa).operations.activation(x, activation)]
    found += [gated(isa, activation, x)] if activation in ACTIVATIONS else []
    for each in found:
        torch.testing.assert_close(each.double(), in_float64(x, activation), atol=absolute, rtol=5e-7)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "sigmoid", "tanh"])
def test_an_activation_does_not_depend_on_a_numbers_place(isa: str, activation: Activation) -> None:
    kernels, x = cpu_kernels(isa), torch.linspace(-9, 9, 40_001)
    whole = kernels.operations.activation(x, activation)
    for first, count in [(0, 1), (1, 15), (3, 17), (30, 40), (16_383, 2), (5, 39_990)]:
        part = x[first : first + count].clone()
        assert torch.equal(kernels.operations.activation(part, activation), whole[first : first + count])
    assert kernels.operations.activation(x[:0], activation).shape == (0,)


def test_numbers_that_an_activation_cannot_take_are_refused() -> None:
    kernels = cpu_kernels("generic")
    for x in (torch.ones(4).bfloat16(), torch.ones(4, 4).T[:2]):
        with pytest.raises(KernelInputError, match="contiguous float32"):
            kernels.operations.activation(x, "silu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_keep_nan_and_infinity(isa: str, activation: Activation) -> None:
    """NaN, and minus infinity (times a share of zero), give NaN; plus infinity stays."""
    x = torch.tensor([math.nan, -math.inf, math.inf])
    packed = pack_linear(_native.Backend(isa), torch.ones(2, 1), None, activation)  # activation(x) x
    want = torch.tensor([math.nan, math.nan, math.inf])
    torch.testing.assert_close(packed(x[:, None])[:, 0], want, equal_nan=True)
    torch.testing.assert_close(cpu_kernels(isa).operations.activation(x, activation), want, equal_nan=True)


def test_gates_of_special_numbers(isa: str) -> None:
    x, kernels = torch.tensor([math.nan, -math.inf, math.inf]), cpu_kernels(isa)
    for activation, lowest in (("sigmoid", 0.0), ("tanh", -1.0)):
        found = kernels.operations.activation(x, activation)
        torch.testing.assert_close(found, torch.tensor([math.nan, lowest, 1.0]), equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_vector_sets_agree_on_every_bit(isa: str, activation: Activation) -> None:
    if isa == "generic" or "avx2" not in _native.usable_instruction_sets():
        pytest.skip("no two that round alike")
    x = of_all_magnitudes()
    assert torch.equal(gated(isa, activation, x), gated("avx2", activation, x))
    assert torch.equal(exponential(isa, x, 40), exponential("avx2", x, 40))
