"""Which experts a token visits, and how much of each it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kvarn.kernels.backend import Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """How a router's numbers become a choice."""

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False
    """Of the router's product."""
    choice_bias: bool = False
    """A number for each expert that is added to its score for the choice alone (DeepSeek-V3)."""
    groups: int = 1
    """Of neighbouring experts; a token's experts are of `groups_per_token` of them (DeepSeek)."""
    groups_per_token: int = 1
    group_score: Literal["best", "best_two"] = "best"
    """A group's score: its best expert's, or the sum of its best two."""
    renormalize: bool = True
    """The shares of the chosen experts are scaled to sum to one."""
    scale: float = 1.0
    """Of the shares."""


def route(
    numbers: torch.Tensor,
    experts_per_token: int,
    spec: RouterSpec,
    choice_bias: torch.Tensor | None,
    kernels: Kernels,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares [T, experts_per_token] float32 and experts [T, experts_per_token] int64 of T tokens, of their router's
    numbers [T, experts]."""
    numbers = numbers.float()
    scores = torch.softmax(numbers, -1) if spec.scoring == "softmax" else kernels.activation(numbers, "sigmoid")
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
