"""What the memory and the arithmetic of this machine allow at best, for the ratio to the roofline.

The seam to `kvarn bench roofline`: everything the suite knows about floors comes through `ceiling`.
"""

from __future__ import annotations

from collections.abc import Callable

Ceiling = Callable[[str, str, str], float | None]
"""Shape, precision and workload to the most output tokens/s this machine allows; None where nobody knows."""


def ceiling(shape: str, precision: str, workload: str) -> float | None:
    """None: the machine's ceilings are not measured."""
    return None
