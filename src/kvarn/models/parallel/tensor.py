"""Tensor parallelism (Megatron-LM, Shoeybi et al. 2019): which part of each weight a rank holds, and how parts meet.

Sums over a divided dimension are taken in one order at every degree: the dimension has `PARTITION` parts whatever the
number of ranks, a rank holds some that lie side by side, and parts are added in a binary tree
(docs/internals/determinism.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch

from kvarn.models.parallel.expert_placement import ExpertPlacement, balance_experts
from kvarn.models.parallel.pipeline import ALL_LAYERS, Stage

PARTITION = 8
"""Parts of a divided sum, and the largest number of ranks that share a layer."""
DEGREES = (1, 2, 4, 8)
"""Numbers of ranks among which `PARTITION` parts are divided so that each has a whole subtree of the sum."""


class Collectives(Protocol):
    """Communication of the ranks that share each layer. All of them make each call, in the same order."""

    def exchange(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        """Give a rank this tensor and take its own, of the same shape and type."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, of the same shape and type, in their order."""
        ...

    def all_to_all(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Give each rank in turn its part of the rows, so many as `sent` says, and take from each so many rows as
        `received` says, in the order of ranks."""
        ...


class ParallelError(ValueError):
    """The model cannot be divided among so many ranks."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a dimension of a weight."""

    size: int
    held: range
    """The rank's part."""
    divided: bool = False
    """Sums over it are taken part by part."""

    @staticmethod
    def whole(size: int) -> Shard:
        return Shard(size, range(size))

    @property
    def is_whole(self) -> bool:
        return len(self.held) == self.size

    def times(self, count: int) -> Shard:
        """The same part where each unit stands for `count` numbers: the features of heads."""
        return Shard(self.size * count, range(self.held.start * count, self.held.stop * count), self.divided)

    def part_numbers(self) -> range:
        """The rank's parts, of the `PARTITION` parts of the whole dimension."""
        return range(self.held.start * PARTITION // self.size, self.held.stop * PARTITION // self.size)

    def parts(self, group: int = 0) -> list[range]:
        """Those parts in order, cut at multiples of `group` where there is one; some may be empty.

        Raises ParallelError where the rank's numbers do not begin and end with a group.
        """
        group = group or 1
        units = -(-self.size // group)
        bounds = [min(units * part // PARTITION * group, self.size) for part in range(PARTITION)] + [self.size]
        numbers = self.part_numbers()
        if (bounds[numbers.start], bounds[numbers.stop]) != (self.held.start, self.held.stop):
            raise ParallelError(
                f"inputs {self.held.start} to {self.held.stop} cut a group of {group} inputs that share a scale"
            )
        return [range(*bound) for bound in pairwise(bounds[numbers.start : numbers.stop + 1])]


@dataclass(frozen=True, slots=True)
class Parallel:
    """One rank's place. The default is a model on one device: everything is whole and nothing is sent."""

    rank: int = 0
    world_size: int = 1
    collectives: Collectives | None = None
    fixed_sums: bool = False
    """Take sums as several ranks do, also where there is one."""
    expert_parallel: bool = False
    """Ranks hold whole experts of a mixture, in place of a part of each."""
    expert_load: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By layer: how many tokens each expert was given, as measured. Whole experts are placed by it."""
    redundant_experts: int = 0
    """Places for experts in each layer, beyond one for each."""
    stage: Stage = ALL_LAYERS
    """The layers that the rank, and those that share them, hold."""

    def __post_init__(self) -> None:
        if self.world_size not in DEGREES:
            raise ParallelError(f"a layer can be shared by 1, 2, 4 or 8 ranks, not by {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ParallelError(f"rank {self.rank} is not one of {self.world_size}")
        if self.world_size > 1 and self.collectives is None:
            raise ParallelError("more than one rank needs collectives to join the parts")

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that the rank's weights depend on."""
        placed = sorted(self.expert_load.items()), self.redundant_experts
        of_experts = placed if self.expert_parallel else ()
        return self.rank, self.world_size, self.divides, of_experts, self.stage.index, self.stage.count

    @property
    def divides(self) -> bool:
        """Whether sums over what ranks share are taken part by part."""
        return self.fixed_sums or self.world_size > 1

    def share(self, total: int, what: str) -> Shard:
        """This rank's part of `total` units, which must divide evenly. `what` names them in the error."""
        if total % self.world_size:
            raise ParallelError(
                f"{total} {what} cannot be divided evenly among {self.world_size} ranks: lower tensor_parallel_size"
            )
        size = total // self.world_size
        return Shard(total, range(self.rank * size, (self.rank + 1) * size), self.divides)

    def undivided(self, total: int) -> Shard:
        """All of `total` units on this rank, with sums taken as if they were shared."""
        return Shard(total, range(total), self.divides)

    def kv_head_share(self, num_kv_heads: int) -> Shard:
        """This rank's key/value heads: a part of them, or one that several ranks hold where there are fewer heads."""
        if num_kv_heads >= self.world_size:
            return self.share(num_kv_heads, "key/value heads")
        if self.world_size % num_kv_heads:
            raise ParallelError(
                f"{num_kv_heads} key/value heads cannot be repeated over {self.world_size} ranks: lower "
                "tensor_parallel_size"
            )
        head = self.rank * num_kv_heads // self.world_size
        return Shard(num_kv_heads, range(head, head + 1))

    def expert_placement(self, layer: int, num_experts: int) -> ExpertPlacement:
        """The ranks of each expert of a layer: all hold a part of it, unless `expert_parallel`."""
        if not self.expert_parallel:
            return ExpertPlacement((tuple(range(self.world_size)),) * num_experts)
        tokens = self.expert_load.get(layer, ())
        if len(tokens) != num_experts:
            return ExpertPlacement.even(num_experts, self.world_size)
        return balance_experts(tokens, self.world_size, self.redundant_experts)

    def vocab_share(self, vocab_size: int) -> Shard:
        """This rank's token ids; the last rank has fewer where they do not divide evenly."""
        size = -(-vocab_size // self.world_size)
        return Shard(vocab_size, range(min(self.rank * size, vocab_size), min((self.rank + 1) * size, vocab_size)))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in a binary tree: neighbours first, then pairs of pairs. The same bits on each."""
        if self.collectives is not None:
            distance = 1
            while distance < self.world_size:
                tensor = tensor + self.collectives.exchange(tensor, self.rank ^ distance)
                distance *= 2
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors, all of one shape, side by side along the last dimension."""
        return tensor if self.collectives is None else torch.cat(self.collectives.all_gather(tensor), -1)

    def all_to_all(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        return rows if self.collectives is None else self.collectives.all_to_all(rows, sent, received)

    def gather_rows(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The ranks' tensors [counts[rank], ...] one below the other."""
        if self.collectives is None:
            return tensor
        padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        gathered = self.collectives.all_gather(padded)
        return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])


def tree_sum(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The sum of 1, 2, 4 or 8 tensors in a binary tree: neighbours first, then pairs of pairs. None is nothing; there
    is one tensor at least."""
    while len(tensors) > 1:
        tensors = [_add(left, right) for left, right in zip(tensors[::2], tensors[1::2], strict=True)]
    (total,) = tensors
    assert total is not None, "a sum of nothing"
    return total


def _add(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    return right if left is None else left if right is None else left + right
