"""The device of a backend, as the host sees it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvarn.kernels.device.memory import DeviceMemory, usable_memory


class Device:
    """The memory of a device, and how it works beside the host. Backends override what differs."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    def memory_bytes(self) -> int:
        """Memory of the device that this process may use."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != self.torch_device.type:
            return usable_memory()
        return int(torch.accelerator.get_memory_info(self.torch_device)[1])

    def memory(self) -> DeviceMemory | None:
        """Memory of a device of its own; None where the device's memory is the machine's."""
        if self.torch_device.type == "cpu" or torch.accelerator.current_accelerator() is None:
            return None
        free, total = torch.accelerator.get_memory_info(self.torch_device)
        return DeviceMemory.of(int(total), int(free), int(torch.accelerator.memory_reserved(self.torch_device)))

    @property
    def is_asynchronous(self) -> bool:
        """Whether operations return before they are computed, so that the host can prepare the next ones."""
        return self.torch_device.type != "cpu"

    @property
    def first_uses(self) -> int:
        """Number of calls in this process that waited for their operation to be compiled, or read from disk: their time
        says nothing about the next call."""
        return 0

    def compile_ahead(self, run: Callable[[], None], threads: int) -> None:
        """Begin to compile, in threads, the operations that `run` calls, in their order; an operation that is called
        meanwhile waits for itself alone. `run` is called before this returns, and computes nothing: its results are
        memory as it was, and nothing may depend on them."""

    def stop_compiling(self) -> None:
        """Compile nothing more ahead. Idempotent."""
