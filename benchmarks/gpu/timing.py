"""How long something takes on the device: with nothing of it in the second cache, many times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from kvarn.kernels.device.graphs import Captured, device_seconds, recorder_for

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
        self._recorder = recorder_for(device)

    def time(self, call: Callable[[], Any], repeats: int = 20) -> dict[str, float]:
        """Microseconds: the median and the 95th percentile.

        The call is captured: to give several kernels to the device takes the host longer than some of them need.
        """
        if not self.on_gpu:
            began = time.perf_counter()
            call()
            taken = [(time.perf_counter() - began) * 1e6]
        else:
            replay, _ = self._capture(call)
            taken = sorted(1e6 * device_seconds(replay, self._flushed.zero_) for _ in range(repeats))
        return {"us": statistics.median(taken), "p95_us": taken[min(len(taken) - 1, int(len(taken) * 0.95))]}

    def _capture(self, call: Callable[[], Any]) -> Captured:
        assert self._recorder is not None, "on a GPU"

        def step() -> tuple[torch.Tensor, ...]:
            call()
            return ()

        for _ in range(2):  # what is compiled or allocated once is so before
            step()
        return self._recorder(step)

    def finish(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()
