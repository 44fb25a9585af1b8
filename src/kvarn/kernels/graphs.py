"""Steps that a GPU repeats without being told each kernel again (CUDA graphs)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch

_log = logging.getLogger(__name__)

Step = Callable[[], tuple[torch.Tensor, ...]]

RUNS_BEFORE_CAPTURE = 2
"""So often a step runs as it is before it is captured: nothing is captured at start, where it would hold up the first
answers, nor for what happens once."""


class StepGraphs:
    """Captured steps by what they depend on. Elsewhere than on a GPU steps run as they are."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        self._runs: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]] = {}
        self._memory: Any = None
        """Shared by all graphs: they run one after the other."""

    @property
    def num_captured(self) -> int:
        """Graphs there are."""
        return len(self._captured)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a step with this key would be repeated."""
        return key in self._captured

    def run(self, key: Hashable, step: Step) -> tuple[torch.Tensor, ...]:
        """What `step` returns. It reads and writes the same memory whenever it is called with an equal key, and what it
        returns is good until another step runs."""
        if not self.enabled:
            return step()
        found = self._captured.get(key)
        if found is None and self._runs[key] < RUNS_BEFORE_CAPTURE:
            self._runs[key] += 1
            return step()
        graph, results = found or self._capture(key, step)
        graph.replay()
        return results

    def _capture(self, key: Hashable, step: Step) -> tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile: one loads adapters.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            results = step()
        self._memory = graph.pool()
        self._captured[key] = graph, results
        _log.debug("captured a step", extra={"step": str(key), "graphs": len(self._captured)})
        return graph, results
