"""The choice of models without replicas for which a process waits. Pure, on a clock that is passed in.

A model's popularity is the number of its requests, each of which counts less the longer ago it was: by half after
`HALF_LIFE_S`. The most popular ones have the pool's processes, one each.
"""

from __future__ import annotations

import math
from collections.abc import Collection

HALF_LIFE_S = 3600.0
LEAST = 0.5
"""Requests, so counted, below which a model has no process: a single request counts for an hour."""


class Popularity:
    """Recent requests of each model."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}

    def add(self, model: str, requests: float, now: float) -> None:
        self._counts[model] = self.of(model, now) + requests, now

    def of(self, model: str, now: float) -> float:
        count, at = self._counts.get(model, (0.0, now))
        return count * math.pow(0.5, (now - at) / HALF_LIFE_S)


def most_popular(popularity: Popularity, idle: Collection[str], size: int, now: float) -> list[str]:
    """The models without replicas that have a process in a pool of this size, the most popular first."""
    ranked = sorted(idle, key=lambda model: (-popularity.of(model, now), model))
    return [model for model in ranked if popularity.of(model, now) >= LEAST][:size]
