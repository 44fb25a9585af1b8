from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvarn.kernels.memory import zeros_on_demand


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_on_demand_are_zeros_that_can_be_written(dtype):
    tensor = zeros_on_demand((3, 4, 5), dtype)
    assert tensor.shape == (3, 4, 5) and tensor.dtype is dtype and not tensor.any()
    tensor[1, 2] = 7
    assert tensor.sum() == 35 and tensor.is_contiguous()


def test_zeros_on_demand_take_memory_only_where_they_are_touched():
    before = resident_bytes()
    tensor = zeros_on_demand((64, 1 << 20), torch.float32)
    assert resident_bytes() - before < 16 << 20
    tensor[:8] = 1
    assert resident_bytes() - before > 24 << 20


def test_no_elements_need_no_memory():
    assert zeros_on_demand((0, 4), torch.float32).shape == (0, 4)


def flags_at(address: int) -> set[str]:
    """What the system knows of the mapping that holds an address (`VmFlags` in proc(5))."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and ":" not in name:
            begin, end = (int(bound, 16) for bound in name.split("-"))
            inside = begin <= address < end
        elif inside and name == "VmFlags:":
            return set(rest.split())
    raise AssertionError(f"{address:x} is not mapped")


def test_large_memory_is_private_and_asks_for_huge_pages():
    # A shared mapping, which mmap makes unless told otherwise, gets none where the system keeps its defaults.
    memory = zeros_on_demand((8 << 20,), torch.uint8)
    flags = flags_at(memory.data_ptr() + (4 << 20))
    assert "hg" in flags and "sh" not in flags
