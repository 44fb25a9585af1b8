"""Models divided among ranks: how their parts meet (`kvarn.specs.place` says which part a rank holds)."""

from kvarn.models.parallel.tensor import Parallel

__all__ = ["Parallel"]
