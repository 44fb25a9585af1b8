"""A backend of kernels: a device, what packs weights for it, and what a step computes there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.device.device import Device
from kvarn.kernels.operations import Operations
from kvarn.kernels.packer import WeightPacker


@dataclass(frozen=True, slots=True)
class Kernels:
    """One backend on one device."""

    name: str
    device: Device
    packer: WeightPacker
    operations: Operations


def torch_kernels(device: torch.device | None = None) -> Kernels:
    """The reference: complete, and on any device torch has (default: this machine's processors)."""
    device = device or torch.device("cpu")
    return Kernels("torch", Device(device), WeightPacker(device), Operations(device))
