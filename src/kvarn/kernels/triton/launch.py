"""Launches of kernels that begin while the one before them ends."""

from __future__ import annotations

from kvarn.kernels.triton.interpreter import is_interpreting

MAX_ROWS = 64
"""With more, programs that wait for the kernel before take room from it for longer than they gain."""


def launch_options(num_rows: int) -> dict[str, bool]:
    """Options of a launch, by the rows of the step, of kernels that call `jit.overlap.wait_for_earlier_kernel`."""
    return {"launch_pdl": True} if num_rows <= MAX_ROWS and not is_interpreting() else {}
