"""Tensors that give the memory of their device back for a while, their numbers kept in main memory."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch

from kvarn.kernels.device.memory import give_back_freed

CHUNK_BYTES = 1 << 28
"""Main memory that is taken at once: a power of two, which is what pinned memory is rounded up to."""
_NOT_ENTERED = (type, ModuleType, FunctionType, BuiltinFunctionType)
"""They lead to everything else in the process."""


def tensors_of(root: object) -> list[torch.Tensor]:
    """All tensors that an object holds, in its attributes and containers and in those of what these hold."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _NOT_ENTERED):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            found.append(each)
        else:
            waiting += gc.get_referents(each)
    return found


class Offloaded:
    """Moves the numbers of tensors to main memory (pinned, where they come from a GPU) and frees the device's.

    The tensors and all views of them stay what they are; they must not be used before `restore`, which gives them
    memory at other addresses. Tensors of a mapped file, or of memory that torch does not own, stay where they are.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], chunk_bytes: int = CHUNK_BYTES) -> None:
        storages = {storage.data_ptr(): storage for storage in (each.untyped_storage() for each in tensors)}
        self._storages = [each for each in storages.values() if each.resizable() and each.nbytes()]
        self._sizes = [each.nbytes() for each in self._storages]
        self.nbytes = sum(self._sizes)  # bytes of the device that were freed
        pinned = any(each.device.type == "cuda" for each in self._storages)
        chunks = -(-self.nbytes // chunk_bytes)
        self._chunks = [torch.empty(chunk_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(chunks)]
        self._copy(to_host=True)
        for storage in self._storages:
            storage.resize_(0)

    def restore(self) -> None:
        """Bring the numbers back and return the main memory. Once."""
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        self._copy(to_host=False)
        devices = {storage.device for storage in self._storages}
        self._storages, self._sizes, self._chunks = [], [], []
        for device in devices:
            give_back_freed(device)

    def _copy(self, *, to_host: bool) -> None:
        at = 0
        for storage in self._storages:
            on_device = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            while len(on_device):
                chunk, start = divmod(at, len(self._chunks[0]))
                on_host = self._chunks[chunk][start : start + len(on_device)]
                part, on_device = on_device[: len(on_host)], on_device[len(on_host) :]
                source, target = (part, on_host) if to_host else (on_host, part)
                target.copy_(source, non_blocking=True)
                at += len(on_host)
        if self._chunks and self._chunks[0].is_pinned():
            torch.cuda.synchronize()
