"""Ranks as threads of one process."""

from __future__ import annotations

import threading

import torch

TIMEOUT_S = 120


class Meeting:
    """Ranks in the threads of one process put their tensors on a table and take the joint result."""

    def __init__(self, world_size: int) -> None:
        self.table: list[torch.Tensor] = [torch.empty(0)] * world_size
        self.barrier = threading.Barrier(world_size)
        self.count = 0
        """Exchanges that rank 0 took part in."""

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.count += rank == 0
        self.table[rank] = tensor
        self.barrier.wait(TIMEOUT_S)
        tensors = list(self.table)
        self.barrier.wait(TIMEOUT_S)
        return tensors
