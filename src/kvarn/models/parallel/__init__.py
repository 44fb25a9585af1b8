"""Models divided among ranks: parts of weights, stages of layers, placement of experts."""

from kvarn.models.parallel.pipeline import Stage, StageError
from kvarn.models.parallel.tensor import Parallel, ParallelError, Shard

__all__ = ["Parallel", "ParallelError", "Shard", "Stage", "StageError"]
