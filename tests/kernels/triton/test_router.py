"""The choice of experts by the Triton kernels against the reference."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.experts import RouterSpec

pytestmark = pytest.mark.sample

SPECS = {
    "softmax": (6, 3, RouterSpec()),
    "softmax without renormalising": (5, 2, RouterSpec(renormalize=False)),
    "best groups": (12, 2, RouterSpec(groups=4, groups_per_token=2, scale=1.5)),
    "sigmoid, bias, best two of a group": (
        18, 3, RouterSpec(scoring="sigmoid", choice_bias=True, groups=3, groups_per_token=2, group_score="best_two")
    ),
    "one expert": (1, 1, RouterSpec()),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_and_experts_are_those_of_the_reference(
    kernels: Kernels, reference: Kernels, name: str, dtype: torch.dtype
) -> None:
    experts, each, spec = SPECS[name]
    generator = torch.Generator().manual_seed(experts)
    # Each score another one: the reference takes any of equal ones.
    numbers = torch.stack([torch.randperm(experts, generator=generator) for _ in range(9)]) / experts
    bias = torch.rand(experts, generator=generator) if spec.choice_bias else None
    found = kernels.operations.route(numbers.to(dtype), each, spec, bias)
    want = reference.operations.route(numbers.to(dtype), each, spec, bias)
    torch.testing.assert_close(found[0], want[0])
    assert torch.equal(found[1], want[1])


def test_of_equal_scores_the_lowest_expert_is_first(kernels: Kernels) -> None:
    assert kernels.operations.route(torch.zeros(2, 5), 3, RouterSpec(), None)[1].tolist() == [[0, 1, 2]] * 2
    assert kernels.operations.route(torch.zeros(0, 5), 3, RouterSpec(), None)[0].shape == (0, 3)
