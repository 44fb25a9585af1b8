"""Rows that are multiplied with one of several weights: sorted by weight on the device, without asking the host.

What follows is launched for as many tiles as there can be, whatever the rows ask for: those that are left over end at
once. So a step with mixtures of experts or adapters can be captured.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def sort(
    groups,
    slots,
    order,
    starts,
    visits,
    count,
    EACH: tl.constexpr,
    GROUPS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The entries of one group, in ascending order, behind those of the groups before it.

    groups [count] int64, each 0 to GROUPS - 1, or negative for none; slots [count / EACH] int64: EACH neighbouring
    entries are those of a token, and tokens with a negative slot have none. order [count], starts [GROUPS + 1] int32:
    the entries of group g are order[starts[g]:starts[g + 1]]. visits [GROUPS] int64: their number is added.
    """
    group = tl.program_id(0)
    smaller = tl.zeros([BLOCK], tl.int32)
    same = tl.zeros([BLOCK], tl.int32)
    for first in range(0, count, BLOCK):
        found = _groups_of(groups, slots, first, count, EACH, HAS_SLOTS, BLOCK)
        smaller += ((found >= 0) & (found < group)).to(tl.int32)
        same += (found == group).to(tl.int32)
    place = tl.sum(smaller, 0)
    own = tl.sum(same, 0)
    tl.store(starts + group, place)
    tl.store(starts + GROUPS, place + own, mask=group == GROUPS - 1)
    if COUNTS:
        tl.store(visits + group, tl.load(visits + group) + own)
    if own > 0:
        for first in range(0, count, BLOCK):
            mine = _groups_of(groups, slots, first, count, EACH, HAS_SLOTS, BLOCK) == group
            rank = tl.cumsum(mine.to(tl.int32), 0)
            tl.store(order + place + rank - 1, first + tl.arange(0, BLOCK), mask=mine)
            place += tl.sum(mine.to(tl.int32), 0)


@triton.jit
def _groups_of(
    groups, slots, first, count, EACH: tl.constexpr, HAS_SLOTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = first + tl.arange(0, BLOCK)
    found = tl.load(groups + at, mask=at < count, other=-1).to(tl.int32)
    if HAS_SLOTS:
        found = tl.where(tl.load(slots + at // EACH, mask=at < count, other=-1) >= 0, found, -1)
    return found


@triton.jit
def tile_of(tile, starts, ROWS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """The group of a tile of ROWS sorted entries of one group, its first place and the group's end. A tile that is left
    over has none: both are 0. BLOCK: a power of two, GROUPS at least."""
    each = tl.arange(0, BLOCK)
    begin = tl.load(starts + each, mask=each < GROUPS, other=0)
    end = tl.load(starts + each + 1, mask=each < GROUPS, other=0)
    tiles = (end - begin + ROWS - 1) // ROWS
    before = tl.cumsum(tiles, 0) <= tile
    group = tl.sum(before.to(tl.int32), 0)
    number = tile - tl.sum(tl.where(before, tiles, 0), 0)
    valid = each == group
    first = tl.sum(tl.where(valid, begin, 0), 0) + number * ROWS
    end = tl.sum(tl.where(valid, end, 0), 0)
    return group, tl.where(group < GROUPS, first, 0), tl.where(group < GROUPS, end, 0)
