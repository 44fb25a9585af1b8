"""Settings of the kernels' tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_kernel_thread() -> None:
    torch.set_num_threads(1)
