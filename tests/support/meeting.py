"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from typing import Any

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
