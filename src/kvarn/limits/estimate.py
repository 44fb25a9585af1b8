"""How many tokens an answer will have, where the client set no bound: learned from the answers before it."""

from __future__ import annotations

import math
from collections import OrderedDict, deque

_REMEMBERED = 100
"""Answers of one organisation and model."""
_MAX_PAIRS = 4096
"""Pairs of organisation and model; the one not seen for longest is forgotten first."""


class OutputEstimates:
    """A running quantile of answer lengths for each organisation and model.

    Args:
        share: Share of the answers that shall be no longer than the estimate.
        first: Tokens, until an answer has been seen.
    """

    def __init__(self, share: float, first: int) -> None:
        self._share = share
        self._first = first
        self._recent: OrderedDict[tuple[str, str], deque[int]] = OrderedDict()

    def expect(self, organization_id: str, model: str) -> int:
        """Tokens to reserve for one answer: the smallest length that the share of the answers does not pass."""
        recent = self._recent.get((organization_id, model))
        if recent is None:
            return self._first
        return max(1, sorted(recent)[max(0, math.ceil(self._share * len(recent)) - 1)])

    def observe(self, organization_id: str, model: str, tokens: int) -> None:
        """An answer without a bound came to its end with so many tokens."""
        self._recent.setdefault((organization_id, model), deque(maxlen=_REMEMBERED)).append(tokens)
        self._recent.move_to_end((organization_id, model))
        if len(self._recent) > _MAX_PAIRS:
            self._recent.popitem(last=False)
