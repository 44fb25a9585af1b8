"""The roofline (Williams, Waterman and Patterson 2009): no step is faster than its bytes or its operations allow."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.costs.decoder import StepWork


@dataclass(frozen=True, slots=True)
class Ceilings:
    bytes_per_s: float
    """Memory read on all cores."""
    operations_per_s: float
    """Multiply-adds (two operations each) in the arithmetic the weights are multiplied in."""

    @property
    def ridge(self) -> float:
        """Arithmetic intensity from which on a step is bound by computing."""
        return self.operations_per_s / self.bytes_per_s


def floor_s(work: StepWork, ceilings: Ceilings) -> float:
    """Seconds the work takes at least: reading and computing perfectly overlapped."""
    return max(work.num_bytes / ceilings.bytes_per_s, work.operations / ceilings.operations_per_s)
