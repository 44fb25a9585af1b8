"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

TIMEOUT_S = 120


class Meeting:
    """Ranks in the threads of one process put their tensors on a table, and each takes those of all."""

    def __init__(self, world_size: int) -> None:
        self.table: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size)
        self.count = 0
        """Exchanges that rank 0 took part in."""

    def exchange(self, rank: int, given: Any) -> list[Any]:
        self.count += rank == 0
        self.table[rank] = given
        self.barrier.wait(TIMEOUT_S)
        taken = list(self.table)
        self.barrier.wait(TIMEOUT_S)
        return taken


class ThreadCollectives:
    """One rank's end of a meeting: see `kvarn.models.parallel.tensor.Collectives`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        self.rank = rank

    def exchange(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        return self.meeting.exchange(self.rank, tensor)[peer].clone()

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self.meeting.exchange(self.rank, tensor)

    def all_to_all(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        parts = [torch.split(theirs, counts) for theirs, counts in self.meeting.exchange(self.rank, (rows, list(sent)))]
        taken = [each[self.rank] for each in parts]
        assert [len(each) for each in taken] == list(received)
        return torch.cat(taken)
