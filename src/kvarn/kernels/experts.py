"""The choice of a token's experts, and experts of one layer as two products over all tokens, where a backend computes
them so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """The rule by which a router's numbers become a choice."""

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False
    """Whether the router's product has a bias."""
    choice_bias: bool = False
    """A number for each expert that is added to its score for the choice alone (DeepSeek-V3)."""
    groups: int = 1
    """Number of groups of neighbouring experts; a token's experts are of `groups_per_token` of them (DeepSeek)."""
    groups_per_token: int = 1
    group_score: Literal["best", "best_two"] = "best"
    """A group's score: its best expert's, or the sum of its best two."""
    renormalize: bool = True
    """The shares of the chosen experts are scaled to sum to one."""
    scale: float = 1.0  # factor of the shares


class GroupedExperts(Protocol):
    """All experts of a layer on one device. Where tokens go is never asked by the host: a step can be captured."""

    visits: torch.Tensor
    """[experts] int64: how many tokens each was given since the start."""

    def __call__(
        self,
        x: torch.Tensor,
        shares: torch.Tensor,
        chosen: torch.Tensor,
        slots: torch.Tensor,
        shared: torch.Tensor | None,
        add_to: torch.Tensor | None,
    ) -> torch.Tensor:
        """The weighted sum of what each token's experts give.

        Args:
            x: [T, hidden].
            shares: [T, experts per token] float32, the weights.
            chosen: [T, experts per token] int64, the experts.
            slots: [T] int64; tokens with a negative one visit no expert.
            shared: [T, hidden] float32, added to the sum.
            add_to: [T, hidden]: the result is added to it in place, and it is returned.

        Returns:
            [T, hidden] in x's type. A row's bits do not depend on other rows.
        """
        ...
