from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from kvarn.kernels.device.memory import HUGE_PAGE, HugePages, give_back_freed, zeros_on_demand


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_zeros_on_demand_take_memory_only_where_they_are_touched():
    before = resident_bytes()
    tensor = zeros_on_demand((64, 1 << 20), torch.float32)
    assert resident_bytes() - before < 16 << 20
    tensor[:8] = 1
    assert resident_bytes() - before > 24 << 20


@pytest.mark.parametrize(
    "shape", [(0, 4), (1,), (3, 4, 5), (100,), (HUGE_PAGE - 1,), (HUGE_PAGE,), (HUGE_PAGE + 1,)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
def test_memory_of_any_size_is_zeros_that_begin_on_a_line_and_can_be_written(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    memory = zeros_on_demand(shape, dtype)
    assert memory.dtype is dtype and memory.shape == shape and memory.data_ptr() % 64 == 0 and memory.is_contiguous()
    assert not memory.any()
    assert (memory.fill_(7) == 7).all()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no list of this process's memory")
def test_large_memory_is_private_and_asked_for_in_huge_pages():
    memory = zeros_on_demand((4 * HUGE_PAGE,), torch.uint8).fill_(1)
    mapping = _mapping_of(memory.data_ptr())
    assert mapping[0].split()[1] == "rw-p"
    flags = next(line for line in mapping if line.startswith("VmFlags:"))
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags.split()


def test_pieces_lie_side_by_side_in_huge_pages() -> None:
    memory = HugePages()
    sizes = [1, 100, HUGE_PAGE // 3, 64, HugePages.CHUNK - 1, 2 * HugePages.CHUNK, 5]
    pieces = [memory.take(size) for size in sizes]
    for number, (size, piece) in enumerate(zip(sizes, pieces, strict=True)):
        assert piece.shape == (size,) and piece.dtype is torch.uint8 and piece.data_ptr() % 64 == 0
        assert not piece.any()
        piece.fill_(number + 1)
    assert [int(piece.min()) for piece in pieces] == [int(piece.max()) for piece in pieces] == list(range(1, 8))
    assert pieces[0].data_ptr() % HUGE_PAGE == 0 and pieces[1].data_ptr() == pieces[0].data_ptr() + 64
    assert memory.take(0).shape == (0,)
    if Path("/sys/kernel/mm/transparent_hugepage").exists() and Path("/proc/self/smaps").exists():
        flags = next(line for line in _mapping_of(pieces[2].data_ptr()) if line.startswith("VmFlags:"))
        assert "hg" in flags.split()


def test_a_copy_in_huge_pages_has_the_same_numbers() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    copy = HugePages().copy(tensor)
    assert torch.equal(copy, tensor) and copy.data_ptr() != tensor.data_ptr()


def test_memory_is_given_back_with_the_last_piece() -> None:
    memory, before = HugePages(), resident_bytes()
    pieces = [memory.take(HugePages.CHUNK // 2).fill_(1) for _ in range(2)]
    assert resident_bytes() - before > HugePages.CHUNK * 3 // 4
    memory.take(HugePages.CHUNK // 2)  # of another chunk
    del pieces
    assert resident_bytes() - before < HugePages.CHUNK // 4


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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library gives memory back by itself")
def test_freed_memory_can_be_given_back():
    before = resident_bytes()
    kept = [torch.ones(8 << 10, dtype=torch.uint8) for _ in range(8192)]  # too small to be mapped one by one
    last = kept[-1]
    kept.clear()  # `last` lies above the others, so that the C library cannot shrink its heap by itself
    give_back_freed(torch.device("cpu"))
    assert resident_bytes() - before < 16 << 20 and last.all()
