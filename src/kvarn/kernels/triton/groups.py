"""Rows sorted by what they are multiplied with, on the device: see `jit.groups`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.triton.jit import groups

SORTED = 1024
"""Entries that a program reads at a time."""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """See `jit.groups.sort`."""

    order: torch.Tensor
    starts: torch.Tensor

    @property
    def num_groups(self) -> int:
        return len(self.starts) - 1

    def num_tiles(self, rows: int) -> int:
        """Most tiles of so many rows: as many are launched, since the host does not know how many there are."""
        return len(self.order) // rows + min(self.num_groups, len(self.order))


def sort_rows(
    of_rows: torch.Tensor,
    num_groups: int,
    slots: torch.Tensor | None = None,
    visits: torch.Tensor | None = None,
) -> SortedRows:
    """Rows with a group each [N] int64, negative for none. `slots` [T], `visits` [groups]: see `jit.groups.sort`."""
    count = len(of_rows)
    order, starts = (torch.empty(size, dtype=torch.int32, device=of_rows.device) for size in (count, num_groups + 1))
    groups.sort[(num_groups,)](
        of_rows,
        slots,
        order,
        starts,
        visits,
        count,
        EACH=1 if slots is None else count // len(slots),
        GROUPS=num_groups,
        HAS_SLOTS=slots is not None,
        COUNTS=visits is not None,
        BLOCK=SORTED,
    )
    return SortedRows(order, starts)
