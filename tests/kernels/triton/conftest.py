"""The Triton kernels in main memory, by Triton's interpreter."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.triton import attention


def _dot(_: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_options: Any) -> TensorHandle:
    """A product whose numbers depend on their rows alone, as those of tensor cores do: rounded once. numpy's own of
    float32 has other bits for other numbers of rows, on some processors."""
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
    return TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)


InterpreterBuilder.create_dot = _dot
attention.FEW_FROM = 16  # the interpreter has no instructions to fill, and tests have small heads


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return kernels_for("triton")


@pytest.fixture(scope="session")
def reference() -> Kernels:
    return torch_kernels(torch.device("cpu"))
