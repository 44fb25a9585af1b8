"""Whether kernels run in Triton's interpreter, on tensors in main memory: in tests."""

from __future__ import annotations

import os


def is_interpreting() -> bool:
    """Whether this process was told to (`TRITON_INTERPRET=1`) before Triton was imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"
