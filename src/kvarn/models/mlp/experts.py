"""The experts of one layer, of which this rank holds some, or a part of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.experts import GroupedExperts
from kvarn.models.mlp.dense import DenseMlp
from kvarn.models.parallel.tensor import Parallel
from kvarn.specs.expert_placement import ExpertPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Takes rows that are sorted by expert, and gives each expert its own."""

    parallel: Parallel
    placement: ExpertPlacement
    held: tuple[DenseMlp, ...]
    """This rank's, in ascending order of their numbers."""
    visits: npt.NDArray[np.int64]
    """[experts]: how many tokens `visit` gave each."""
    grouped: GroupedExperts | None
    """All of them at once; None: `visit` computes one after the other."""

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """[experts]: how many each was given since the start, on whichever rank. Waits for the device."""
        if self.grouped is None:
            return self.visits
        counted: npt.NDArray[np.int64] = self.grouped.visits.numpy(force=True)
        return counted

    @property
    def nbytes(self) -> int:
        return sum(expert.nbytes for expert in self.held)

    def mix(self, x: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """The outputs of the experts that each token visits, weighted, added in the order of experts: [T, hidden]
        float32, the same bits on every rank and however experts are held.

        x: [T, hidden]. tokens: [N] int64, those that visit experts, sorted by expert. counts: [experts] int64. shares:
        [N, 1], the weights of the visits.
        """
        visited = counts.numpy(force=True)
        self.visits[:] += visited
        if self.parallel.expert_parallel and self.parallel.world_size > 1:
            return self._mix_apart(x, tokens, torch.from_numpy(visited), shares)
        inputs, of_experts = x[tokens], visited.tolist()
        outputs = self._compute(inputs, of_experts)
        if self.parallel.world_size > 1:
            outputs = self._whole_sum(outputs, of_experts)
        mixed = outputs.float().mul_(shares)
        return mixed.new_zeros(x.shape).index_add_(0, tokens, mixed)

    def _mix_apart(
        self, x: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Each rank computes the visits to its own experts, and adds up a part of the tokens: it gets the outputs for
        those from the others, and the others get the sums."""
        parallel, device = self.parallel, x.device
        rank, size = parallel.rank, parallel.world_size
        bounds = [len(x) * each // size for each in range(size + 1)]
        owners = torch.from_numpy(self.placement.owners(counts.numpy()))
        adders = torch.bucketize(tokens.to(counts.device), torch.tensor(bounds[1:-1]), right=True)
        own, added = (owners == rank).nonzero().flatten(), (adders == rank).nonzero().flatten()
        experts = torch.repeat_interleave(counts)[own]
        own_counts = torch.bincount(experts, minlength=len(counts))[self.placement.held(rank)]
        outputs = self._compute(x[tokens[own.to(device)]], own_counts.tolist())
        sent, received = (torch.bincount(each, minlength=size).tolist() for each in (adders[own], owners[added]))
        outputs = outputs[adders[own].argsort(stable=True).to(device)]
        arrived = parallel.all_to_all(outputs, sent, received)
        added = added[owners[added].argsort(stable=True)].to(device)  # in the order in which they arrive
        back = added.argsort()
        mixed = arrived[back].float().mul_(shares[added[back]])
        first, count = bounds[rank], bounds[rank + 1] - bounds[rank]
        sums = mixed.new_zeros(count, x.shape[1]).index_add_(0, tokens[added[back]] - first, mixed)
        return parallel.gather_rows(sums, [bounds[each + 1] - bounds[each] for each in range(size)])

    def _whole_sum(self, outputs: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Over ranks, each of which has a part of every expert."""
        total = self.parallel.all_reduce(outputs)
        for expert, part in zip(self.held, torch.split(total, counts), strict=True):
            if expert.bias_of_sum is not None:
                part += expert.bias_of_sum
        return total

    def _compute(self, inputs: torch.Tensor, counts: list[int]) -> torch.Tensor:
        parts = torch.split(inputs, counts)
        outputs = [expert.partial(part) for expert, part in zip(self.held, parts, strict=True) if len(part)]
        return torch.cat(outputs) if outputs else inputs.new_zeros(0, inputs.shape[1], dtype=torch.float32)


def stack_visits(layers: Iterable[Experts]) -> torch.Tensor | None:
    """One tensor [layers, experts] in whose rows the layers count from now on, of those that count on the device; None
    where none do. Before steps are captured: these count at the addresses they know."""
    grouped = [each.grouped for each in layers if each.grouped is not None]
    if not grouped:
        return None
    visits = torch.stack([each.visits for each in grouped])
    for each, row in zip(grouped, visits, strict=True):
        each.visits = row
    return visits
