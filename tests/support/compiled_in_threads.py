"""Compiles a kernel ahead in a thread and launches it, on an H100 that is not there, in a process without Triton's
interpreter; prints how often it was compiled, read from disk, launched, and waited for."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.compilation import COMPILATION
from kvarn.kernels.triton.linear import norm_rows
from launched_kernels import Driver

found = {"compiled": 0, "read": 0, "launched": 0}


class Launcher:
    """Counts."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, *_: Any) -> None:
        found["launched"] += 1


class LaunchingDriver(Driver):
    """One that has a launcher."""

    launcher_cls = Launcher
    utils = SimpleNamespace(
        load_binary=lambda *_: (0, 0, 32, 0, 1024), get_device_properties=lambda _: {"max_shared_mem": 232448}
    )

    def get_current_stream(self, device: int) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass


def count(*, cache_hit: bool, **_: Any) -> None:
    found["read" if cache_hit else "compiled"] += 1


def launch() -> None:
    norm_rows(torch.zeros(3, 64, dtype=torch.bfloat16), Norm(torch.ones(64), 1e-6))


driver.set_active(LaunchingDriver())
knobs.compilation.listener = count
COMPILATION.begin(launch, 2)
assert found["launched"] == 0
launch()
COMPILATION.wait()
launch()
COMPILATION.stop()
sys.stdout.write(json.dumps(found | {"first_uses": COMPILATION.first_uses}))
