"""Lengths of answers in tokens, learned from the answers before."""

from __future__ import annotations

import math
from collections import OrderedDict, deque

FIRST_GUESS = 128.0  # tokens expected of an answer before any has ended
MODEL_FADE = 0.02  # weight of the latest answer in a model's average: about the last hundred count
TENANT_FADE = 0.1  # the same among a tenant's own
REMEMBERED = 100  # answers of one tenant and model that quantiles are taken of
MAX_PAIRS = 4096  # pairs of tenant and model; the one not seen for longest is forgotten first


class _Lengths:
    __slots__ = ("count", "mean", "recent")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.recent = deque[int](maxlen=REMEMBERED)

    def learn(self, tokens: float, fade: float) -> None:
        self.count += 1
        self.mean += max(fade, 1 / self.count) * (tokens - self.mean)


class AnswerLengths:
    """Averages and quantiles of answer lengths, by model and tenant."""

    def __init__(self) -> None:
        self._models: dict[str, _Lengths] = {}
        self._pairs: OrderedDict[tuple[str, str], _Lengths] = OrderedDict()

    def mean(self, model: str, tenant: str | None = None) -> float:
        """Tokens of an answer on average: the tenant's own, or the model's where it has had none."""
        pair = None if tenant is None else self._pairs.get((model, tenant))
        found = pair or self._models.get(model)
        return FIRST_GUESS if found is None else found.mean

    def quantile(self, model: str, tenant: str, share: float) -> int | None:
        """The smallest length that this share of the tenant's answers does not exceed; None before the first one."""
        found = self._pairs.get((model, tenant))
        if found is None:
            return None
        return max(1, sorted(found.recent)[max(0, math.ceil(share * len(found.recent)) - 1)])

    def learn(self, model: str, tenant: str, tokens: float) -> None:
        self._models.setdefault(model, _Lengths()).learn(tokens, MODEL_FADE)
        pair = self._pairs.setdefault((model, tenant), _Lengths())
        pair.learn(tokens, TENANT_FADE)
        pair.recent.append(math.ceil(tokens))
        self._pairs.move_to_end((model, tenant))
        if len(self._pairs) > MAX_PAIRS:
            self._pairs.popitem(last=False)
