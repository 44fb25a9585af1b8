"""Replicas in turn."""

from __future__ import annotations

from collections.abc import Sequence


def next_ready(ready: Sequence[bool], last: int) -> int | None:
    """Position of the first ready replica after `last`, from the front again at the end; None where none is ready."""
    order = [*range(last + 1, len(ready)), *range(min(last + 1, len(ready)))]
    return next((position for position in order if ready[position]), None)
