"""Experts of one layer as two products over all tokens, where a backend computes them so."""

from __future__ import annotations

from typing import Protocol

import torch

from kvarn.shapes.router import RouterSpec as RouterSpec


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
