"""The choice of experts in torch: the reference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvarn.kernels.experts import RouterSpec


def route(
    numbers: torch.Tensor,
    experts_per_token: int,
    spec: RouterSpec,
    choice_bias: torch.Tensor | None,
    sigmoid: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = numbers.float()
    scores = torch.softmax(numbers, -1) if spec.scoring == "softmax" else sigmoid(numbers)
    ranking = scores if choice_bias is None else scores + choice_bias
    if spec.groups > 1:
        ranking = ranking.masked_fill(~_in_best_groups(ranking, spec), -torch.inf)
    chosen = ranking.topk(experts_per_token, -1).indices
    shares = scores.gather(-1, chosen)
    if spec.renormalize:
        shares = shares / shares.sum(-1, keepdim=True)
    return shares if spec.scale == 1.0 else shares * spec.scale, chosen


def _in_best_groups(ranking: torch.Tensor, spec: RouterSpec) -> torch.Tensor:
    """[T, experts] bool."""
    grouped = ranking.view(len(ranking), spec.groups, -1)
    best = grouped.topk(1 if spec.group_score == "best" else 2, -1).values.sum(-1)
    groups = best.topk(spec.groups_per_token, -1).indices
    mask = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, groups, True)
    return mask.unsqueeze(-1).expand_as(grouped).flatten(-2)
