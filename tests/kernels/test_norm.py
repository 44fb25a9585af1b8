"""The root-mean-square norm, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

import math

import pytest
import torch

from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm


def definition(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    x64 = x.double()
    return x64 / torch.sqrt(x64.square().mean(-1, keepdim=True) + norm.eps) * norm.weight.double()


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (3, 15), (2, 16), (7, 37), (5, 1024), (300, 129)])
def test_it_equals_its_definition(every_kernels: Kernels, rows: int, size: int) -> None:
    x, norm = torch.randn(rows, size) * 3, Norm(torch.randn(size), 1e-5)
    found = every_kernels.operations.rms_norm(x, norm)
    torch.testing.assert_close(found.double(), definition(x, norm), atol=1e-5, rtol=1e-5)


def test_it_adds_in_place_to_rows_of_a_wider_tensor_and_touches_nothing_else(every_kernels: Kernels) -> None:
    wide, norm = torch.full((4, 50), math.nan), Norm(torch.rand(33), 1e-6)
    stream = wide[:, 5:38]
    before = torch.randn(4, 33)
    stream.copy_(before)
    x = torch.randn(4, 70)[:, 3:36]
    assert every_kernels.operations.rms_norm(x, norm, add_to=stream) is stream
    torch.testing.assert_close(stream.double(), before + definition(x, norm), atol=1e-5, rtol=1e-5)
    assert wide[:, :5].isnan().all() and wide[:, 38:].isnan().all()


def test_a_row_does_not_depend_on_its_neighbours_nor_on_the_vector_set(isa: str) -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    x, norm = torch.randn(64, 77), Norm(torch.randn(77), 1e-5)
    operations = cpu_kernels(isa).operations
    together = operations.rms_norm(x, norm)
    assert torch.equal(torch.cat([operations.rms_norm(row, norm) for row in x.split(1)]), together)
    if isa != "generic":
        assert torch.equal(cpu_kernels("avx2").operations.rms_norm(x, norm), together)


def test_bfloat16_is_computed_in_float32() -> None:
    x = (torch.randn(3, 256) * 100).bfloat16()
    norm = Norm(torch.ones(256), 0.0)
    assert torch.equal(torch_kernels().operations.rms_norm(x, norm), definition(x, norm).bfloat16())


def test_other_shapes_and_types_are_refused() -> None:
    from kvarn.kernels.cpu.backend import cpu_kernels

    kernels, norm = cpu_kernels("generic"), Norm(torch.ones(8), 1e-5)
    for x in (torch.ones(2, 9), torch.ones(2, 8).double(), torch.ones(8, 2).T):
        with pytest.raises(KernelInputError, match=r"float32 \[\d, 8\]"):
            kernels.operations.rms_norm(x, norm)
    with pytest.raises(KernelInputError, match="not overlap"):
        kernels.operations.rms_norm(torch.ones(2, 8), norm, add_to=torch.ones(1, 8).expand(2, 8))
    with pytest.raises(KernelInputError, match="as many float32 weights"):
        kernels.operations.rms_norm(torch.ones(2, 8), Norm(torch.ones(2, 8), 1e-5))
