"""The Triton kernels as a backend, for GPUs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.device.device import Device
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.kernels.triton.compilation import COMPILATION
from kvarn.kernels.triton.launch import is_interpreting
from kvarn.kernels.triton.operations import TritonOperations
from kvarn.kernels.triton.packer import TritonPacker


class TritonDevice(Device):
    """A GPU, for which kernels are compiled in threads."""

    @property
    def first_uses(self) -> int:
        return COMPILATION.first_uses

    def compile_ahead(self, run: Callable[[], None], threads: int) -> None:
        """See `kvarn.kernels.triton.compilation`. The interpreter compiles nothing."""
        if not is_interpreting():
            COMPILATION.begin(run, threads)

    def stop_compiling(self) -> None:
        COMPILATION.stop()


def triton_kernels(device: torch.device) -> Kernels:
    """Kernels of a GPU. Not thread-safe: products share scratch memory.

    Raises UnsupportedByBackendError for main memory, except in Triton's interpreter.
    """
    if device.type == "cpu" and not is_interpreting():
        raise UnsupportedByBackendError(
            "the 'triton' kernels compute on GPUs, in main memory only for tests (TRITON_INTERPRET=1): set "
            "`kernels` to auto"
        )
    if not is_interpreting():
        COMPILATION.watch()
    return Kernels("triton", TritonDevice(device), TritonPacker(device), TritonOperations(device))
