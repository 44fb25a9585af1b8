"""Memory for packed weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvarn.kernels.cpu.memory import HUGE_PAGE, allocate


@pytest.mark.parametrize("size", [1, 100, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1])
def test_memory_of_any_size_begins_on_a_line_and_can_be_written(size: int) -> None:
    memory = allocate(size)
    assert memory.dtype is torch.uint8 and memory.shape == (size,) and memory.data_ptr() % 64 == 0
    memory.fill_(7)
    assert int(memory.sum(dtype=torch.int64)) == 7 * size


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no list of this process's memory")
def test_large_memory_is_private_and_asked_for_in_huge_pages() -> None:
    """Linux holds shared memory in small pages unless it is set up otherwise."""
    memory = allocate(4 * HUGE_PAGE).fill_(1)
    mapping = _mapping_of(memory.data_ptr())
    assert mapping[0].split()[1] == "rw-p"
    flags = next(line for line in mapping if line.startswith("VmFlags:"))
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags.split()


def _mapping_of(address: int) -> list[str]:
    """Lines of /proc/self/smaps that describe the memory at an address."""
    lines: list[str] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if not head.endswith(":"):
            first, last = (int(number, 16) for number in head.split("-"))
            if lines:
                return lines
            lines = [line] if first <= address < last else []
        elif lines:
            lines.append(line)
    return lines
