"""Values drawn from a distribution, one after the other: looked at ahead of time or not, they are the same ones."""

from __future__ import annotations

import random

from kvarn.costs.replica_model import Distribution


class Draws:
    """Values of a distribution, in the order of their seed."""

    def __init__(self, distribution: Distribution, seed: int = 0) -> None:
        self._distribution = distribution
        self._constant = distribution.values[0] if len(set(distribution.values)) == 1 else None
        self._random = random.Random(seed)
        self._ahead: list[float] = []

    @property
    def are_zero(self) -> bool:
        return self._constant == 0.0

    def peek(self, count: int) -> list[float]:
        """The next values, which stay the next ones."""
        if self._constant is not None:
            return [self._constant] * count
        at, uniform = self._distribution.at, self._random.random
        self._ahead += [at(uniform()) for _ in range(count - len(self._ahead))]
        return self._ahead[:count]

    def skip(self, count: int) -> None:
        """Go on behind values that were looked at."""
        del self._ahead[:count]

    def take(self) -> float:
        if self._constant is not None:
            return self._constant
        value = self.peek(1)[0]
        self.skip(1)
        return value
