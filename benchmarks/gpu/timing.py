"""How long something takes on the device: with nothing of it in the second cache, many times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Case = tuple[str, Callable[[], Any], int, Callable[[], Any] | None]
"""Name, call, bytes that it must read, and the same in torch where torch has it."""

FLUSHED_BYTES = 256 * 2**20
"""More than the second cache of any GPU."""


class Timer:
    """Times calls on a device; on a processor only so that a dry run gets through."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self._flushed = torch.empty(FLUSHED_BYTES if self.on_gpu else 1, dtype=torch.int8, device=device)

    def time(self, call: Callable[[], Any], repeats: int = 20) -> dict[str, float]:
        """Microseconds: the median and the 95th percentile."""
        if self.on_gpu:
            call()
        else:
            repeats = 1
        taken = sorted(self._once(call) for _ in range(repeats))
        return {"us": statistics.median(taken), "p95_us": taken[min(len(taken) - 1, int(len(taken) * 0.95))]}

    def _once(self, call: Callable[[], Any]) -> float:
        self._flushed.zero_()
        if not self.on_gpu:
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def finish(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()
