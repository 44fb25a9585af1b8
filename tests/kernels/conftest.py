"""Settings of the kernels' tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.sampling import SamplingTensors
from kvarn.wire.sampling import SamplingParams

Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, SamplingTensors], torch.Tensor]


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


@pytest.fixture(params=["torch", *_instruction_sets()])
def every_kernels(request: pytest.FixtureRequest) -> Kernels:
    """The reference's kernels, and those of each instruction set."""
    if request.param == "torch":
        return kernels_for("torch")
    from kvarn.kernels.cpu.backend import cpu_kernels

    return cpu_kernels(request.param)


@pytest.fixture(scope="session", params=["torch", *_instruction_sets()])
def draw_tokens(request: pytest.FixtureRequest) -> Draw:
    """The draw of the reference, and of each instruction set."""
    if request.param == "torch":
        return kernels_for("torch").operations.draw_tokens
    from kvarn.kernels.cpu.backend import cpu_kernels

    return cpu_kernels(request.param).operations.draw_tokens


def oracle_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """Probabilities after temperature, min-p, top-k and top-p, in float64."""
    top = max(logits)
    weights = [math.exp((value - top) / params.temperature) for value in logits]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: params.top_k or len(order)]
    total = math.fsum(weights[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= params.top_p * total:
            break
        kept.append(token)
        mass = math.fsum([mass, weights[token]])
    return [weights[token] / mass if token in kept else 0.0 for token in range(len(weights))]


@pytest.fixture(scope="session")
def exact_shares() -> Callable[[list[float], SamplingParams], list[float]]:
    return oracle_distribution
