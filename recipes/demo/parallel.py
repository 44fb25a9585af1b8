"""Gradients by threads that take one group at a time.

A parallel loop inside an operation waits for its slowest thread, and on a shared machine that is a time slice lost per
operation. Here each thread runs whole groups on one core, and whoever is free takes the next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import torch
from torch import nn

GroupLoss = Callable[[nn.Module], torch.Tensor]


class GroupParallel:
    """Copies of a model that share weights but not gradients, one for each thread."""

    def __init__(self, model: nn.Module, threads: int) -> None:
        torch.set_num_threads(1)
        self.model = model
        self.copies = [model, *(copy.deepcopy(model) for _ in range(threads - 1))]
        for other in self.copies[1:]:
            for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
                mine.data = theirs.data
        self.pool = ThreadPoolExecutor(threads)

    def backward(self, losses: list[GroupLoss]) -> float:
        """Sum the gradients of all groups into the model's own; return the sum of the losses."""
        queue: SimpleQueue[GroupLoss] = SimpleQueue()
        for group_loss in losses:
            queue.put(group_loss)

        def work(mine: nn.Module) -> float:
            total = 0.0
            while True:
                try:
                    group_loss = queue.get_nowait()
                except Empty:
                    return total
                loss = group_loss(mine)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()

        total = sum(self.pool.map(work, self.copies))
        for other in self.copies[1:]:
            for mine, theirs in zip(self.model.parameters(), other.parameters(), strict=True):
                if theirs.grad is not None:
                    mine.grad = theirs.grad if mine.grad is None else mine.grad.add_(theirs.grad)
                    theirs.grad = None
        return total

    def step(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Let the optimizers update side by side; each owns different parameters."""
        list(self.pool.map(lambda optimizer: optimizer.step(), optimizers))
        self.model.zero_grad()
