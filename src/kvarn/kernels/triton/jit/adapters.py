"""Low-rank adapters: out += scale * B (A x), for rows sorted by adapter (`jit.groups`).

An adapter's weights are lines in pages, as csrc/linear/adapters.h describes them. A tile of rows of one adapter reads
each line once. Inputs are cut into splits, whose sums `expand` adds in order; tiles have 16 rows whatever the step: so
the bits of a row do not depend on other rows.

Sources: Punica (Chen et al. 2023), S-LoRA (Sheng et al. 2023).
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.groups import tile_of

LINE = tl.constexpr(64)
"""Bytes."""
PANEL = tl.constexpr(16)
"""Outputs that share lines."""
FIELDS = tl.constexpr(4)
"""Numbers of a part's place: first line, rank, first output, outputs."""


@triton.jit(do_not_specialize=["num_rows", "layer", "num_layers", "num_pages"])
def shrink(
    x,
    order,
    starts,
    pages,
    places,
    sums,
    num_rows,
    layer,
    num_layers,
    num_pages,
    X_STRIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    LINES_PER_PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    STEP: tl.constexpr,
    ADAPTERS: tl.constexpr,
    ADAPTERS_BLOCK: tl.constexpr,
    NUMBERS: tl.constexpr,
    PER_LINE: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A x over one split of the inputs, for a tile of rows, one part of the layer and 16 of its ranks.

    x [T, INPUTS]; pages [ADAPTERS, num_pages] int64 addresses; places [ADAPTERS, layers, PARTS, FIELDS] int32; sums
    [splits, T, PARTS, RANK] float32, T in the order of `order`. NUMBERS: the weights' type, PER_LINE: inputs of a line;
    DOT: the type that is multiplied.
    """
    adapter, first, end = tile_of(tl.program_id(0), starts, ROWS, ADAPTERS, ADAPTERS_BLOCK)
    if first >= end:
        return
    part = tl.program_id(1) // (RANK // PANEL)
    panel = tl.program_id(1) % (RANK // PANEL)
    split = tl.program_id(2)
    place = places + ((adapter * num_layers + layer) * PARTS + part) * FIELDS
    if panel * PANEL >= tl.load(place + 1):
        return
    lines: tl.constexpr = (INPUTS + PER_LINE - 1) // PER_LINE
    first_line = tl.load(place) + panel * lines
    row = first + tl.arange(0, ROWS)
    real = row < end
    token = tl.load(order + row, mask=real, other=0).to(tl.int64)
    total = tl.zeros([ROWS, PANEL], tl.float32)
    for k in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, INPUTS), STEP):
        at = k + tl.arange(0, STEP)
        own = tl.load(
            x + token[:, None] * X_STRIDE + at[None, :], mask=real[:, None] & (at < INPUTS)[None, :], other=0.0
        )
        done = k // PER_LINE
        a = _panel(
            pages + adapter * num_pages,
            first_line + done,
            lines - done,
            LINES_PER_PAGE,
            STEP // PER_LINE,
            PER_LINE,
            NUMBERS,
        )
        total = tl.dot(own.to(DOT), a.to(DOT), total, input_precision="ieee")
    to = sums + ((split * num_rows + row) * PARTS + part).to(tl.int64)[:, None] * RANK
    tl.store(to + (panel * PANEL + tl.arange(0, PANEL))[None, :], total, mask=real[:, None])


@triton.jit(do_not_specialize=["num_rows", "layer", "num_layers", "num_pages"])
def expand(
    sums,
    order,
    starts,
    pages,
    places,
    scales,
    out,
    num_rows,
    layer,
    num_layers,
    num_pages,
    OUT_STRIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    LINES_PER_PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    PANELS: tl.constexpr,
    ADAPTERS: tl.constexpr,
    ADAPTERS_BLOCK: tl.constexpr,
    NUMBERS: tl.constexpr,
    PER_LINE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """scale * B u added to PANELS panels of outputs of one part, u being the sum over the splits: see `shrink`.

    scales [ADAPTERS, layers, PARTS] float32; out [T, outputs] float32.
    """
    adapter, first, end = tile_of(tl.program_id(0), starts, ROWS, ADAPTERS, ADAPTERS_BLOCK)
    if first >= end:
        return
    part = tl.program_id(2)
    number = (adapter * num_layers + layer) * PARTS + part
    place = places + number * FIELDS
    rank = tl.load(place + 1)
    outs = tl.load(place + 3)
    panels = (outs + PANEL - 1) // PANEL
    own_panels = (rank + PANEL - 1) // PANEL
    begin = tl.program_id(1) * PANELS
    if begin >= panels:
        return
    row = first + tl.arange(0, ROWS)
    real = row < end
    token = tl.load(order + row, mask=real, other=0).to(tl.int64)
    r = tl.arange(0, RANK)
    valid = real[:, None] & (r < own_panels * PANEL)[None, :]
    u = tl.zeros([ROWS, RANK], tl.float32)
    for split in range(SPLITS):
        at = sums + ((split * num_rows + row) * PARTS + part).to(tl.int64)[:, None] * RANK + r[None, :]
        u += tl.load(at, mask=valid, other=0.0)
    u *= tl.load(scales + number)
    lines = (rank + PER_LINE - 1) // PER_LINE
    first_line = tl.load(place) + own_panels * ((INPUTS + PER_LINE - 1) // PER_LINE)
    first_out = tl.load(place + 2)
    for panel in range(begin, tl.minimum(begin + PANELS, panels)):
        b = _panel(
            pages + adapter * num_pages, first_line + panel * lines, lines, LINES_PER_PAGE, RANK // PER_LINE, PER_LINE,
            NUMBERS,
        )  # fmt: skip
        added = tl.dot(u, b.to(tl.float32), input_precision="ieee")
        n = panel * PANEL + tl.arange(0, PANEL)
        to = out + token[:, None] * OUT_STRIDE + (first_out + n)[None, :]
        inside = real[:, None] & (n < outs)[None, :]
        tl.store(to, tl.load(to, mask=inside, other=0.0) + added, mask=inside)


@triton.jit
def _panel(
    pages, first, count, LINES_PER_PAGE: tl.constexpr, LINES: tl.constexpr, PER_LINE: tl.constexpr,
    NUMBERS: tl.constexpr,
):  # fmt: skip
    """LINES lines of a panel from `first` on, as [inputs, 16]; those from `count` on count as zeros."""
    at = tl.arange(0, LINES)
    line = first + at
    page = tl.load(pages + line // LINES_PER_PAGE, mask=at < count, other=0)
    address = tl.multiple_of(page + line % LINES_PER_PAGE * LINE, 64)
    numbers = address.to(tl.pointer_type(NUMBERS))[:, None] + tl.arange(0, PANEL * PER_LINE)[None, :]
    own = tl.load(numbers, mask=(at < count)[:, None], other=0.0)
    own = tl.permute(tl.reshape(own, [LINES, PANEL, PER_LINE]), [0, 2, 1])
    return tl.reshape(own, [LINES * PER_LINE, PANEL])
