"""Communication of ranks in several processes: pipes, and a torch.distributed group (gloo on CPUs, NCCL on GPUs)."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from kvarn.kernels.device.memory import is_host
from kvarn.worker.errors import WorkerError

TIMEOUT = timedelta(hours=1)
"""Longer than any step may take: the supervisor ends a process that hangs (`replica.step_timeout_s`)."""
_LENGTH = struct.Struct("<Q")


class RankLostError(WorkerError):
    """Another rank of the model has ended."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Numbering of the ranks of one model: stages from the last to the first, so that rank 0, which draws tokens, has
    the logits; in a stage the ranks that share its layers, once for each part of long prompts."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1

    @property
    def world_size(self) -> int:
        return self.stage_size * self.pipeline_parallel_size

    @property
    def stage_size(self) -> int:
        return self.tensor_parallel_size * self.prefill_context_parallel_size

    def stage(self, rank: int) -> int:
        return self.pipeline_parallel_size - 1 - rank // self.stage_size

    def shard(self, rank: int) -> int:
        return rank % self.tensor_parallel_size

    def context(self, rank: int) -> int:
        return rank // self.tensor_parallel_size % self.prefill_context_parallel_size

    def peers(self, rank: int) -> list[int]:
        first = rank - self.shard(rank)
        return list(range(first, first + self.tensor_parallel_size))

    def context_peers(self, rank: int) -> list[int]:
        first = rank - self.context(rank) * self.tensor_parallel_size
        return list(range(first, first + self.stage_size, self.tensor_parallel_size))


class RankGroup:
    """One rank's end of the group: the `Collectives` and `Neighbours` of `kvarn.models.parallel`. A model may have
    it before it has joined the others."""

    def __init__(self, layout: RankLayout, rank: int, device: torch.device) -> None:
        self._layout = layout
        self._rank = rank
        self._device = device
        self._peers, self._context_peers = layout.peers(rank), layout.context_peers(rank)
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}  # groups of this rank, by their ranks

    def join(self, store: Path) -> None:
        """Wait for all ranks to come. `store`: a new file that only they may write. Nothing listens beyond this
        machine's loopback interface, unless GLOO_SOCKET_IFNAME names another."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        world = self._layout.world_size
        backend = "gloo" if is_host(self._device) else "nccl"
        with _lost():
            dist.init_process_group(
                backend, store=FileStore(str(store), world), rank=self._rank, world_size=world, timeout=TIMEOUT
            )
            both = (self._layout.peers, self._layout.context_peers)
            for peers in dict.fromkeys(tuple(of(rank)) for of in both for rank in range(world)):
                group = dist.new_group(list(peers))  # a call of all ranks, also for the groups of others
                if self._rank in peers:
                    self._groups[peers] = group

    def leave(self) -> None:
        if self._groups:
            self._groups = {}
            dist.destroy_process_group()

    def exchange(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        ours, other = tensor.contiguous(), self._peers[peer]
        theirs = torch.empty_like(ours)
        group = self._groups[tuple(self._peers)]  # as the others: each group has buffers of its own on a GPU
        both = [dist.P2POp(dist.isend, ours, other, group), dist.P2POp(dist.irecv, theirs, other, group)]
        with _lost():
            for work in dist.batch_isend_irecv(both):
                work.wait()
        return theirs

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._all_gather(tensor, self._peers)

    def all_to_all(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        taken = rows.new_empty((sum(received), *rows.shape[1:]))
        with _lost():
            dist.all_to_all_single(
                taken, rows.contiguous(), list(received), list(sent), group=self._groups[tuple(self._peers)]
            )
        return taken

    def gather_context(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._all_gather(tensor, self._context_peers)

    def send(self, tensor: torch.Tensor) -> None:
        with _lost():
            dist.send(tensor.contiguous(), self._rank - self._layout.stage_size)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        with _lost():
            dist.recv(tensor, self._rank + self._layout.stage_size)
        return tensor

    def _all_gather(self, tensor: torch.Tensor, peers: list[int]) -> list[torch.Tensor]:
        ours = tensor.contiguous()
        gathered = [torch.empty_like(ours) for _ in peers]
        with _lost():
            dist.all_gather(gathered, ours, group=self._groups[tuple(peers)])
        return gathered


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankLostError(f"another rank of this model is gone: {str(error).splitlines()[0][:300]}") from error


def send_frame(pipe: IO[bytes], message: bytes) -> None:
    try:
        pipe.write(_LENGTH.pack(len(message)) + message)
        pipe.flush()
    except (BrokenPipeError, ValueError) as error:
        raise RankLostError("another rank of this model has ended") from error


def read_frame(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    return message if len(message) == length else None
