"""The experts of one layer, of which this rank holds some, or a part of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from kvarn.models.expert_placement import ExpertPlacement
from kvarn.models.parallel import Parallel


class Expert(Protocol):
    """One of them."""

    @property
    def nbytes(self) -> int:
        """Bytes of its products as they are held."""
        ...

    @property
    def bias_of_sum(self) -> torch.Tensor | None:
        """[hidden] float32, to be added to a sum over ranks; None where `partial` gives all there is."""
        ...

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] to what this rank has of the result [T, hidden]: all of it, or its part of a sum."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Takes rows that are sorted by expert, and gives each expert its own."""

    parallel: Parallel
    placement: ExpertPlacement
    held: tuple[Expert, ...]
    """This rank's, in ascending order of their numbers."""
    tokens: npt.NDArray[np.int64]
    """[experts]: how many each was given since the start, on whichever rank."""

    @property
    def nbytes(self) -> int:
        """Bytes of what this rank holds."""
        return sum(expert.nbytes for expert in self.held)

    def visit(self, inputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The outputs [N, hidden] for N inputs sorted by expert, the same on every rank. counts: [experts] int64.

        Ranks that hold whole experts compute the rows of theirs, and each row goes to all. Of experts that are divided
        each rank computes a part of every row. Either way a row's bits are the same.
        """
        visited = counts.numpy(force=True)
        self.tokens[:] += visited
        if self.parallel.world_size == 1:
            return self._compute(inputs, visited.tolist())
        if not self.parallel.expert_parallel:
            return self._whole_sum(inputs, visited.tolist())
        here = torch.from_numpy(visited)
        owners = self.placement.owners(here)
        order = owners.argsort(stable=True)
        rows = torch.bincount(owners, minlength=self.parallel.world_size)
        own = torch.split(order, rows.tolist())[self.parallel.rank]
        experts = torch.repeat_interleave(here)[own]
        own_counts = torch.bincount(experts, minlength=len(counts))[self.placement.held(self.parallel.rank)]
        gathered = self.parallel.gather_rows(
            self._compute(inputs[own.to(inputs.device)], own_counts.tolist()), rows.tolist()
        )
        return torch.empty_like(gathered).index_copy_(0, order.to(inputs.device), gathered)

    def _whole_sum(self, inputs: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Over ranks, each of which has a part of every expert."""
        total = self.parallel.all_reduce(self._compute(inputs, counts))
        for expert, part in zip(self.held, torch.split(total, counts), strict=True):
            if expert.bias_of_sum is not None:
                part += expert.bias_of_sum
        return total

    def _compute(self, inputs: torch.Tensor, counts: list[int]) -> torch.Tensor:
        parts = torch.split(inputs, counts)
        outputs = [expert.partial(part) for expert, part in zip(self.held, parts, strict=True) if len(part)]
        return torch.cat(outputs) if outputs else inputs.new_zeros(0, inputs.shape[1], dtype=torch.float32)
