"""The compiled kernels as a backend."""

from __future__ import annotations

import os

import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.isa import VARIABLE, chosen_instruction_set
from kvarn.kernels.cpu.operations import CpuOperations
from kvarn.kernels.cpu.packer import CpuPacker
from kvarn.kernels.device.device import Device


def cpu_kernels(isa: str | None = None) -> Kernels:
    """Kernels of an instruction set; default: what KVARN_ISA names, else the best one here.

    Raises UnusableInstructionSetError, which lists the usable ones.
    """
    chosen = chosen_instruction_set(os.environ if isa is None else {VARIABLE: isa})
    backend = _native.Backend(chosen)
    device = Device(torch.device("cpu"))
    return Kernels(f"cpu ({chosen})", device, CpuPacker(backend), CpuOperations(backend))
