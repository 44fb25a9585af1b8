"""Memory of a GPU, as a process on it sees it."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024**3

DRIVER_BYTES = 640 * 1024**2
"""The driver's share for a process on a GPU, its context and the code of kernels: some 0.5 GiB, and more with each
library."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    total: int
    free: int
    """Memory that no process uses."""
    own: int
    """Memory of this process: its tensors, and the driver's share for it."""

    @staticmethod
    def of(total: int, free: int, reserved: int) -> DeviceMemory:
        """`reserved`: by torch, for tensors. No driver tells what it needs for one process: used memory beyond the
        tensors of this process counts as that, up to `DRIVER_BYTES`."""
        return DeviceMemory(total, free, reserved + max(0, min(DRIVER_BYTES, total - free - reserved)))

    @property
    def others(self) -> int:
        return self.total - self.free - self.own

    def usable(self, share: float) -> int:
        """Memory that this process may still take: up to this share of the whole, and no more than is free."""
        return min(int(self.total * share) - self.own, self.free)
