"""The Triton kernels in main memory, by Triton's interpreter."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import pytest
import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.dispatch import kernels_for


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return kernels_for("triton")


@pytest.fixture(scope="session")
def reference() -> Kernels:
    return Kernels(torch.device("cpu"))
