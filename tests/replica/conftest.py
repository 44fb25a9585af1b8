from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def threads_as_before() -> Iterator[None]:
    """A service sets the number of threads for its process, which is the tests'."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
