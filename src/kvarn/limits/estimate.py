"""How many tokens an answer will have, where the client set no bound: learned from the answers before it."""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

_REMEMBERED = 100
"""Answers of one organisation and model."""
_MOST_PAIRS = 4096
"""Pairs of organisation and model; the one not seen for longest is forgotten first."""


@dataclass(slots=True)
class _Recent:
    """The latest answers, as they came and by length."""

    arrived: deque[int] = field(default_factory=deque)
    ranked: list[int] = field(default_factory=list)

    def add(self, tokens: int) -> None:
        if len(self.arrived) == _REMEMBERED:
            self.ranked.remove(self.arrived.popleft())
        self.arrived.append(tokens)
        insort(self.ranked, tokens)

    def quantile(self, share: float) -> int:
        """The smallest length that this share of the answers does not pass (nearest rank)."""
        return self.ranked[max(0, math.ceil(share * len(self.ranked)) - 1)]


class OutputEstimates:
    """A running quantile of answer lengths for each organisation and model.

    Args:
        share: Share of the answers that shall be no longer than the estimate.
        first: Tokens, until an answer has been seen.
    """

    def __init__(self, share: float, first: int) -> None:
        self._share = share
        self._first = first
        self._recent: OrderedDict[tuple[str, str], _Recent] = OrderedDict()

    def expect(self, organization_id: str, model: str) -> int:
        """Tokens to reserve for one answer."""
        recent = self._recent.get((organization_id, model))
        return self._first if recent is None else max(1, recent.quantile(self._share))

    def observe(self, organization_id: str, model: str, tokens: int) -> None:
        """An answer without a bound came to its end with so many tokens."""
        recent = self._recent.setdefault((organization_id, model), _Recent())
        self._recent.move_to_end((organization_id, model))
        recent.add(tokens)
        if len(self._recent) > _MOST_PAIRS:
            self._recent.popitem(last=False)
