"""Settings of the kernels' tests."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.dispatch import kernels_for


@pytest.fixture(autouse=True, scope="session")
def one_kernel_thread() -> None:
    torch.set_num_threads(1)


def _instruction_sets() -> list[str]:
    """All that can run here, the emulated ones too; none where Kvarn was installed without its compiled kernels."""
    try:
        from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets
    except ImportError:
        return []
    return usable_instruction_sets() + emulated_instruction_sets()


@pytest.fixture(params=_instruction_sets())
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session", params=["torch", *_instruction_sets()])
def every_kernels(request: pytest.FixtureRequest) -> Kernels:
    """The reference's kernels, and those of each instruction set."""
    if request.param == "torch":
        return kernels_for("torch")
    from kvarn.kernels.cpu.backend import cpu_kernels

    return cpu_kernels(request.param)
