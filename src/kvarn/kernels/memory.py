"""How much memory there is, and large zeroed tensors that cost nothing until they are used."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from pathlib import Path

import torch

GIB = 1024**3

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


def give_back_freed() -> None:
    """Return memory that was freed, but kept for later, to the operating system.

    The C library keeps what small and middle-sized tensors leave behind: after loading a model of 1.2 GB that was
    300 MB which are not needed again.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def usable_memory(cgroup_root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory this process may use: the machine's, or the tightest limit of the cgroups around it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_cgroup_limits(cgroup_root, process)])


def _cgroup_limits(root: Path, process: Path) -> list[int]:
    """Limits set on the process's cgroups and all above them; version 2 and version 1 layouts."""
    places = [("", root / "memory.max"), ("", root / "memory" / "memory.limit_in_bytes")]
    if process.exists():
        for line in process.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inner = [Path(path.strip("/")), *Path(path.strip("/")).parents]
            if controllers == "":
                places += [("", root / part / "memory.max") for part in inner]
            elif "memory" in controllers.split(","):
                places += [("", root / "memory" / part / "memory.limit_in_bytes") for part in inner]
    texts = [place.read_text().strip() for _, place in places if place.is_file()]
    return [int(text) for text in texts if text.isdigit()]
