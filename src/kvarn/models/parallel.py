"""Tensor parallelism (Megatron-LM, Shoeybi et al. 2019): which part of each weight a rank holds, and how parts meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Collectives(Protocol):
    """How the ranks of one model talk."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, the same on each."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension, the same on each."""
        ...


class ParallelError(ValueError):
    """The model cannot be divided among so many ranks."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a dimension of a weight."""

    size: int
    """Of the whole dimension."""
    held: range
    """What the rank holds of it."""

    @staticmethod
    def whole(size: int) -> Shard:
        """All of it, on every rank."""
        return Shard(size, range(size))

    @property
    def is_whole(self) -> bool:
        """Whether the rank holds all of it."""
        return len(self.held) == self.size

    def times(self, count: int) -> Shard:
        """The same part where each unit stands for `count` numbers: the features of heads."""
        return Shard(self.size * count, range(self.held.start * count, self.held.stop * count))


@dataclass(frozen=True, slots=True)
class Parallel:
    """One rank's place. The default is a model on one device: everything is whole and nothing is sent."""

    rank: int = 0
    world_size: int = 1
    collectives: Collectives | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ParallelError(f"rank {self.rank} is not one of {self.world_size}")
        if self.world_size > 1 and self.collectives is None:
            raise ParallelError("more than one rank needs collectives to join the parts")

    def share(self, total: int, what: str) -> Shard:
        """This rank's part of `total` units, which must divide evenly. `what` names them in the error."""
        if total % self.world_size:
            raise ParallelError(f"{total} {what} cannot be divided evenly among {self.world_size} ranks")
        size = total // self.world_size
        return Shard(total, range(self.rank * size, (self.rank + 1) * size))

    def kv_head_share(self, num_kv_heads: int) -> Shard:
        """This rank's key/value heads: a part of them, or one that several ranks hold where there are fewer heads."""
        if num_kv_heads >= self.world_size:
            return self.share(num_kv_heads, "key/value heads")
        if self.world_size % num_kv_heads:
            raise ParallelError(f"{num_kv_heads} key/value heads cannot be repeated over {self.world_size} ranks")
        head = self.rank * num_kv_heads // self.world_size
        return Shard(num_kv_heads, range(head, head + 1))

    def vocab_share(self, vocab_size: int) -> Shard:
        """This rank's token ids; the last rank has fewer where they do not divide evenly."""
        size = -(-vocab_size // self.world_size)
        return Shard(vocab_size, range(min(self.rank * size, vocab_size), min((self.rank + 1) * size, vocab_size)))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks."""
        return tensor if self.collectives is None else self.collectives.all_reduce(tensor)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension."""
        return tensor if self.collectives is None else self.collectives.all_gather(tensor)
