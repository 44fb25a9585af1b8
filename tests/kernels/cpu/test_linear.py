"""Packed linear layers in float32 and bfloat16: against float64, and the same bits whatever the company of a row."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from kvarn.kernels.linear import Norm

_native = pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.kernels.cpu.linear import CpuLinear  # noqa: E402
from kvarn.kernels.cpu.packing import WeightForm  # noqa: E402
from kvarn.kernels.errors import KernelInputError  # noqa: E402
from packing import pack_linear  # noqa: E402
from random_rows import random_weight  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16]
SHAPES = [(1, 1), (16, 64), (37, 50), (96, 259), (170, 1025)]
ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


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
