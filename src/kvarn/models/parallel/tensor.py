"""Communication of the ranks of a model: those that share each layer, and those of the stages before and behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvarn.specs.place import ParallelError, Place


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


class Neighbours(Protocol):
    """The ranks of the stages before and behind that have the same part of each layer."""

    def send(self, tensor: torch.Tensor) -> None: ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Parallel(Place):
    """A rank's place, and its ways to the others. The default is a model on one device: nothing is sent."""

    collectives: Collectives | None = None
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        Place.__post_init__(self)  # dataclasses with slots have no super() without arguments
        if self.world_size > 1 and self.collectives is None:
            raise ParallelError("more than one rank needs collectives to join the parts")

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The activations of the stage before."""
        assert self.neighbours is not None, "several stages have neighbours"
        return self.neighbours.receive(shape, dtype)

    def send(self, tensor: torch.Tensor) -> None:
        assert self.neighbours is not None, "several stages have neighbours"
        self.neighbours.send(tensor)

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
