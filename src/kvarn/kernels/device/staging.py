"""Copies between main memory and a device: one a step in each direction. The one to the device is not waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Bytes: those of a kernel's widest load."""


class Staging:
    """Packs the arrays of a step into memory that the device reads by itself, and copies all in one go.

    The tensors it returns lie at the same addresses each time that arrays of the same sizes are sent, and are good
    until the next call: steps run one after the other on the device, in the order in which they were given to it.

    Args:
        device: Where arrays go.
        num_bytes: Of a step's arrays, the usual ones; larger ones get memory of their own.
        in_flight: Steps that may be sent before the first of them has run.
    """

    def __init__(self, device: torch.device, num_bytes: int, in_flight: int) -> None:
        self._pinned = device.type != "cpu"
        self._target = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._sources = [self._on_host(num_bytes) for _ in range(in_flight + 1)]
        self._copied: list[torch.Event | None] = [None] * len(self._sources)
        self._turn = 0

    def _on_host(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def send(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        source, target = self._memory(end)
        packed = source.numpy()
        for start, array in zip(starts, arrays, strict=True):
            packed[start : start + array.nbytes].view(array.dtype)[:] = array.ravel()
        target[:end].copy_(source[:end], non_blocking=True)
        if self._pinned:
            copied = torch.Event(target.device)
            copied.record()
            self._copied[self._turn] = copied
        self._turn = (self._turn + 1) % len(self._sources)
        return [
            target[start : start + array.nbytes].view(torch.from_numpy(array[:0].copy()).dtype).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    def _memory(self, num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory of the host and of the device. Waits for the copy of `in_flight` steps ago."""
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if num_bytes <= len(self._target):
            return self._sources[self._turn], self._target
        source = self._sources[self._turn] = self._on_host(num_bytes)  # kept until it is copied
        return source, torch.empty_like(source, device=self._target.device)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tensors on their way from a device."""

    tensors: list[torch.Tensor]
    copied: torch.Event | None

    @staticmethod
    def start(tensors: Sequence[torch.Tensor]) -> Fetched:
        """Begin to copy. Later computations of the device do not change the copies."""
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return Fetched([tensor.clone() for tensor in tensors], None)
        host = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors]
        for to, tensor in zip(host, tensors, strict=True):
            to.copy_(tensor, non_blocking=True)
        copied = torch.Event(tensors[0].device)
        copied.record()
        return Fetched(host, copied)

    def wait(self) -> list[npt.NDArray[np.generic]]:
        if self.copied is not None:
            self.copied.synchronize()
        return [tensor.numpy() for tensor in self.tensors]
