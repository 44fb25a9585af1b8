"""Sizes of memory, and large zeroed tensors that cost nothing until they are used."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from pathlib import Path

import torch

from kvarn.costs.device_memory import GIB as GIB
from kvarn.costs.device_memory import DeviceMemory as DeviceMemory
from kvarn.observe.cgroups import CGROUPS, OWN_CGROUPS, cgroup_directories

HUGE_PAGE = 2 * 1024 * 1024
"""Bytes. Memory of at least this size lies in huge pages where the system gives them: fewer address look-ups fail."""


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """A tensor of zeros; in main memory (the default), one whose pages the system supplies when first touched.

    `torch.zeros` writes every byte at once: a second for each few gigabytes, and memory held that may never be needed.
    The memory is page-aligned and lives as long as the tensor or a view of it. It is private: pages that could be
    shared with other processes take twice as long to supply, and are never huge where the system keeps its defaults.
    """
    count = math.prod(shape)
    if count == 0 or (device is not None and device.type != "cpu"):
        return torch.zeros(shape, dtype=dtype, device=device)
    size = count * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


class HugePages:
    """Zeroed memory for what stays, such as packed weights, in huge pages where the system gives them.

    A mapping has as many huge pages as it has whole ones in it: a small weight with a mapping of its own has none, nor
    has a mapped file. Small ones share a chunk, which is given back when another one was begun and all that was taken
    from it is gone. Thread-safe.
    """

    CHUNK = 32 * HUGE_PAGE
    ALIGNMENT = 64

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: mmap.mmap | None = None
        self._next = self._end = 0
        """The rest of the chunk."""

    def take(self, nbytes: int) -> torch.Tensor:
        """[nbytes] uint8, that begin on a line of 64 bytes."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        if nbytes > self.CHUNK // 2:
            memory, first = _map_huge_pages(nbytes)
            return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=first)
        with self._lock:
            if self._chunk is None or nbytes > self._end - self._next:
                self._chunk, self._next = _map_huge_pages(self.CHUNK)
                self._end = self._next + self.CHUNK
            first = self._next
            self._next += -(-nbytes // self.ALIGNMENT) * self.ALIGNMENT
            return torch.frombuffer(self._chunk, dtype=torch.uint8, count=nbytes, offset=first)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.take(tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _map_huge_pages(nbytes: int) -> tuple[mmap.mmap, int]:
    """A mapping, and from where on so many bytes of it begin with a huge page."""
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % HUGE_PAGE


def is_host(device: torch.device) -> bool:
    """Whether a device is this machine's processors."""
    return device.type == "cpu"


def device_allocations(device: torch.device) -> int:
    """Number of times that this process took memory of a GPU from torch's pool; 0 for main memory."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device)["allocation.all.allocated"])


def give_back_freed(device: torch.device) -> None:
    """Return memory that was freed, but kept for later, to the operating system and, of a GPU, to its driver: the
    device's own, and pinned main memory. Waits for the device.

    The C library keeps what small and middle-sized tensors leave behind: after loading a model of 1.2 GB that was
    300 MB which are not needed again.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # pinned memory is free when no copy can read it any more
        torch._C._host_emptyCache()  # torch.accelerator.empty_host_cache of later versions
        torch.cuda.empty_cache()


def usable_memory(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> int:
    """Bytes of memory this process may use: the machine's, or the tightest limit of the cgroups around it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    directories = cgroup_directories("memory", cgroups, own_cgroups)
    files = (directory / name for directory in directories for name in ("memory.max", "memory.limit_in_bytes"))
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return min([physical, *(int(text) for text in texts if text.isdigit())])
