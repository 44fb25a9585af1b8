"""The choice of experts by the Triton kernels: see `jit.router`."""

from __future__ import annotations

import torch
import triton

from kvarn.kernels.checks import check_rows
from kvarn.kernels.experts import RouterSpec
from kvarn.kernels.triton.jit import router


def route(
    numbers: torch.Tensor, experts_per_token: int, spec: RouterSpec, choice_bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Operations.route`."""
    tokens, num_experts = numbers.shape
    check_rows(numbers, (tokens, num_experts), numbers.dtype)
    shares = torch.empty((tokens, experts_per_token), dtype=torch.float32, device=numbers.device)
    chosen = torch.empty_like(shares, dtype=torch.int64)
    if tokens:
        router.route[(tokens,)](
            numbers,
            choice_bias,
            shares,
            chosen,
            spec.scale,
            STRIDE=numbers.stride(0),
            EXPERTS=num_experts,
            EACH=experts_per_token,
            SOFTMAX=spec.scoring == "softmax",
            HAS_BIAS=choice_bias is not None,
            GROUPS=spec.groups,
            GROUPS_EACH=spec.groups_per_token,
            BEST_TWO=spec.group_score == "best_two",
            RENORMALIZE=spec.renormalize,
            BLOCK=triton.next_power_of_2(num_experts),
            EACH_BLOCK=triton.next_power_of_2(experts_per_token),
            num_warps=1,
        )
    return shares, chosen
