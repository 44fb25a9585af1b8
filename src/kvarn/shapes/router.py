"""The choice of a token's experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
