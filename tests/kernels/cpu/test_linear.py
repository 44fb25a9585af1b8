"""Packed linear layers in float32 and bfloat16: against float64, and the same bits whatever the company of a row."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kvarn.kernels.activation import Activation
from kvarn.kernels.linear import Norm

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.kernels.cpu.linear import CpuLinear  # noqa: E402
from kvarn.kernels.cpu.packing import WeightForm  # noqa: E402
from kvarn.kernels.errors import KernelInputError  # noqa: E402
from packing import in_rows_of_nan, pack_linear, poison_freed_memory, random_weight  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16]
SHAPES = [(1, 1), (16, 64), (37, 50), (96, 259), (170, 1025)]
ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


def as_multiplied(x: torch.Tensor, isa: str, dtype: torch.dtype) -> torch.Tensor:
    """x in float64, rounded to bfloat16 first where a set multiplies bfloat16 by bfloat16."""
    rounds = dtype == torch.bfloat16 and isa.endswith(("bf16", "amx"))
    return x.bfloat16().double() if rounds else x.double()


def activated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def test_products_equal_those_in_float64(isa: str) -> None:
    backend = _native.Backend(isa)
    for dtype in FLOATS:
        for out, in_features in SHAPES:
            weight, bias = random_weight(out, in_features, dtype), torch.randn(out)
            plain, biased = pack_linear(backend, weight), pack_linear(backend, weight, bias)
            assert (plain.out_features, plain.in_features) == (out, in_features)
            for rows in (0, 1, 2, 3, 5, 7, 13, 29):
                x = in_rows_of_nan(torch.randn(rows, in_features))
                want = as_multiplied(x, isa, dtype) @ weight.double().T
                poison_freed_memory(rows * out)
                torch.testing.assert_close(plain(x).double(), want, atol=2e-5, rtol=1e-5)
                torch.testing.assert_close(biased(x).double(), want + bias.double(), atol=2e-5, rtol=1e-5)


def test_many_rows_of_many_inputs_equal_those_in_float64(isa: str) -> None:
    backend, x = _native.Backend(isa), torch.randn(203, 600)
    for dtype in FLOATS:
        weight = random_weight(130, 600, dtype)
        want = as_multiplied(x, isa, dtype) @ weight.double().T
        torch.testing.assert_close(pack_linear(backend, weight)(x).double(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_a_norm_of_the_input_comes_first(isa: str, rows: int) -> None:
    for in_features in (1, 50, 259):
        norm = Norm(torch.randn(in_features), 1e-3)
        weight, x = random_weight(33, in_features, torch.float32), in_rows_of_nan(torch.randn(rows, in_features))
        scale = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + norm.eps)
        want = (x.double() * scale * norm.weight.double()) @ weight.double().T
        found = pack_linear(_native.Backend(isa), weight)(x, norm=norm)
        torch.testing.assert_close(found.double(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_gated_weight_multiplies_the_activated_gate_by_up(
    isa: str, activation: Activation, dtype: torch.dtype
) -> None:
    backend = _native.Backend(isa)
    for half, in_features in [(1, 3), (16, 64), (41, 70), (100, 300)]:
        weight, bias = 3 * random_weight(2 * half, in_features, dtype), torch.randn(2 * half)
        for rows in (1, 3, 9, 33):
            x = torch.randn(rows, in_features)
            gate, up = (as_multiplied(x, isa, dtype) @ weight.double().T + bias.double()).chunk(2, -1)
            packed = pack_linear(backend, weight, bias, activation)
            assert packed.out_features == half
            poison_freed_memory(rows * half)
            torch.testing.assert_close(packed(x).double(), activated(gate, activation) * up, atol=5e-5, rtol=2e-5)


def test_activations_hold_from_end_to_end_of_the_numbers(isa: str) -> None:
    """One input, gate weights 1 and up weights 1: the output is activation(x) x."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e4, -90.0, 90.0, 1e4])])[:, None]
    for activation in ACTIVATIONS:
        found = pack_linear(_native.Backend(isa), torch.ones(2, 1), None, activation)(x)
        want = activated(x.double(), activation) * x.double()
        torch.testing.assert_close(found.double(), want, atol=2e-6, rtol=1e-6)


def test_the_result_is_added_to_what_is_given(isa: str) -> None:
    backend, x = _native.Backend(isa), torch.randn(11, 70)
    for activation in (None, "silu"):
        packed = pack_linear(backend, random_weight(50, 70, torch.bfloat16), torch.randn(50), activation)
        around = torch.randn(11, packed.out_features + 9)
        before = around.clone()
        found = packed(x, add_to=around[:, 4:-5])
        assert found.data_ptr() == around[:, 4:-5].data_ptr()
        assert torch.equal(around[:, 4:-5], before[:, 4:-5] + packed(x))
        assert torch.equal(around[:, :4], before[:, :4]) and torch.equal(around[:, -5:], before[:, -5:])


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_show_in_their_own_row_and_spoil_no_other(isa: str, dtype: torch.dtype) -> None:
    packed = pack_linear(_native.Backend(isa), random_weight(20, 70, dtype))
    for rows in (7, 40, 300):
        x = torch.randn(rows, 70)
        sound = packed(x)
        x[3, 41], x[5, 0], x[5, 1] = math.nan, math.inf, -math.inf
        found = packed(x)
        assert found[3].isnan().all() and not found[5].isfinite().any()
        others = [row for row in range(rows) if row not in (3, 5)]
        assert torch.equal(found[others], sound[others])


def test_calls_from_several_threads_on_one_backend_take_turns(isa: str) -> None:
    backend = _native.Backend(isa)
    layers = [pack_linear(backend, random_weight(64, 300, torch.float32)) for _ in range(2)]
    inputs = [torch.randn(rows, 300) for rows in (40, 200)]
    alone = [layer(x) for layer, x in zip(layers, inputs, strict=True)]

    def call(index: int) -> bool:
        return all(torch.equal(layers[index](inputs[index]), alone[index]) for _ in range(100))

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(call, range(2)))


def test_vector_instruction_sets_give_the_same_bits(isa: str) -> None:
    """All but `generic`, which rounds a product before it is added."""
    reference = "avx2"
    if isa == "generic" or reference not in _native.usable_instruction_sets():
        pytest.skip("no two to compare")
    x, norm = torch.randn(19, 300), Norm(torch.randn(300), 1e-6)
    for activation in (None, *ACTIVATIONS):
        weight = random_weight(90, 300, torch.float32)
        found, want = (pack_linear(_native.Backend(name), weight, None, activation) for name in (isa, reference))
        assert torch.equal(found(x, norm=norm), want(x, norm=norm))


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_come_back_as_they_were_packed(dtype: torch.dtype, activation: Activation | None) -> None:
    for out, in_features in [(2, 1), (38, 51), (128, 64), (170, 1025)]:
        weight = random_weight(out, in_features, dtype)
        packed = pack_linear(_native.Backend("generic"), weight, None, activation)
        ids = torch.randint(out, (77,))
        assert torch.equal(packed.rows(ids), weight[ids].float())
        assert torch.equal(packed.rows(torch.arange(out)), weight.float())
    assert packed.rows(torch.tensor([], dtype=torch.int64)).shape == (0, in_features)


def test_packed_bytes_are_taken_over_from_elsewhere_and_padded_with_zeros() -> None:
    backend, weight = _native.Backend("generic"), torch.full((17, 65), 2.0)
    packed = pack_linear(backend, weight)
    kept = packed.packed
    assert kept.form == WeightForm(format="f32", out=17, in_features=65)
    assert packed.nbytes == kept.blob.nbytes == 32 * 128 * 4
    assert int((kept.blob.view(torch.float32) != 0).sum()) == 17 * 65
    moved = CpuLinear(backend, replace(kept, blob=kept.blob.clone()))
    x = torch.randn(3, 65)
    assert torch.equal(moved(x), packed(x))


def test_half_precision_weights_become_float32() -> None:
    weight = torch.randn(5, 9).half()
    packed = pack_linear(_native.Backend("generic"), weight)
    assert packed.packed.form.format == "f32"
    assert torch.equal(packed.rows(torch.arange(5)), weight.float())


def test_tensors_that_do_not_fit_are_refused() -> None:
    backend = _native.Backend("generic")
    packed = pack_linear(backend, torch.randn(6, 4))
    with pytest.raises(KernelInputError, match=r"float32 \[2, 4\]"):
        packed(torch.randn(2, 5))
    with pytest.raises(KernelInputError, match="float32"):
        packed(torch.randn(2, 4).bfloat16())
    with pytest.raises(KernelInputError, match="numbers side by side"):
        packed(torch.randn(4, 2).T)
    with pytest.raises(KernelInputError, match=r"\[2, 6\]"):
        packed(torch.randn(2, 4), add_to=torch.randn(3, 6))
    with pytest.raises(KernelInputError, match="overlap"):
        packed(torch.randn(2, 4), add_to=torch.randn(1, 6).expand(2, 6))
    with pytest.raises(KernelInputError, match="norm"):
        packed(torch.randn(2, 4), norm=Norm(torch.randn(3), 1e-6))
    with pytest.raises(KernelInputError, match="side by side"):
        packed(torch.randn(2, 4), norm=Norm(torch.randn(8)[::2], 1e-6))
    with pytest.raises(KernelInputError, match="between 0 and 5"):
        packed.rows(torch.tensor([6]))
    with pytest.raises(KernelInputError, match="between 0 and 5"):
        packed.rows(torch.tensor([-1]))
    with pytest.raises(KernelInputError, match="bias"):
        pack_linear(backend, torch.randn(6, 4), torch.randn(5))
    with pytest.raises(KernelInputError, match="gate and up"):
        pack_linear(backend, torch.randn(5, 4), None, "silu")
    with pytest.raises(KernelInputError, match=f"needs {packed.nbytes} bytes"):
        CpuLinear(backend, replace(packed.packed, blob=packed.packed.blob[:-1]))
    memory = torch.zeros(2 * packed.nbytes + 64, dtype=torch.uint8)
    for elsewhere in (memory[1 : packed.nbytes + 1], memory[: 2 * packed.nbytes : 2]):
        with pytest.raises(KernelInputError, match="boundary, without gaps"):
            CpuLinear(backend, replace(packed.packed, blob=elsewhere))
