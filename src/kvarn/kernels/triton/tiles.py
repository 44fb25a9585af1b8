"""The division of products: by the number of rows into tiles, and by inputs into splits."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS = 256
"""Programs that keep every multiprocessor of a large GPU reading: inputs are split until a product with few rows has so
many."""
QUANTIZED_PROGRAMS = 384
"""With quantized weights, which some programs convert while others read theirs."""
SHORTEST_SPLIT = 256
MAX_SPLITS = 16
SPLIT_STEP = 128
"""A split is a whole number of these, and of a tile's inputs."""
APART_BELOW = 132
"""Splits are computed by programs of their own where there are fewer tiles than this."""
FEW_ROWS = 16
FEW_APART_BELOW = 512
"""In its place for few rows and quantized weights."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The division of a product. It changes no bit, but for the step of quantized weights: see `QUANTIZED_TILES`."""

    rows: int
    outs: int
    step: int
    warps: int
    stages: int


Tiles = tuple[tuple[int, Tile], ...]
"""Each for so many rows at most; larger numbers of rows take the last one."""
_LONG = 1 << 30
TILES: Tiles = (
    (16, Tile(16, 64, 128, 4, 4)),
    (32, Tile(32, 64, 128, 4, 4)),
    (64, Tile(64, 64, 128, 4, 3)),
    (256, Tile(128, 128, 64, 8, 3)),
    (_LONG, Tile(128, 128, 64, 8, 4)),
)
GATED_TILES: Tiles = (
    (16, Tile(16, 64, 128, 4, 3)),
    (32, Tile(32, 64, 64, 4, 3)),
    (64, Tile(64, 64, 64, 8, 3)),
    (128, Tile(64, 64, 64, 4, 4)),
    (_LONG, Tile(128, 128, 64, 8, 4)),
)
"""With an activation: a tile has twice as many weights and sums."""
QUANTIZED_TILES: Tiles = (
    (16, Tile(16, 64, 128, 4, 4)),
    (32, Tile(32, 64, 128, 4, 4)),
    (64, Tile(64, 64, 128, 4, 3)),
    (_LONG, Tile(128, 64, 128, 4, 3)),
)
"""With weights of 4 or 8 bits. A warp group (4 warps) takes 64 outputs, in whose order they lie. The step is the same
in all of these, gated ones too (4 bits: a group): its products are scaled before they are added."""
GATED_QUANTIZED_TILES: Tiles = (
    (16, Tile(16, 64, 128, 4, 3)),
    (32, Tile(32, 64, 128, 4, 3)),
    (_LONG, Tile(64, 64, 128, 4, 3)),
)


MANY_ROWS = Tile(256, 128, 64, 8, 4)
GATED_MANY_ROWS = Tile(128, 128, 64, 8, 4)
"""Tiles of `jit.many_rows`."""
MANY_ROWS_FROM = 129
"""Rows from which on there are such tiles: fewer fill the tiles above."""


def many_rows_tile(gated: bool) -> Tile:
    """The tile of plain weights for rows that fill a GPU with such."""
    return GATED_MANY_ROWS if gated else MANY_ROWS


def many_rows_from_tiles(inputs: int, gated: bool) -> int:
    """Tiles of `many_rows_tile` from which on a product is faster so than by splits that are computed apart: a program
    computes all inputs of its tile, and a gated product has few splits."""
    return 48 if gated else 20 + inputs // 256


def tiles_for(gated: bool, quantized: bool) -> Tiles:
    """Those of a layer."""
    if quantized:
        return GATED_QUANTIZED_TILES if gated else QUANTIZED_TILES
    return GATED_TILES if gated else TILES


def tile_of(num_rows: int, gated: bool, quantized: bool) -> Tile:
    """The tile for so many rows."""
    return next(tile for max_rows, tile in tiles_for(gated, quantized) if num_rows <= max_rows)


def apart_below(rows: int, quantized: bool) -> int:
    """Splits are computed by programs of their own where there are fewer tiles of so many rows."""
    return FEW_APART_BELOW if quantized and rows <= FEW_ROWS else APART_BELOW


def splits_of(outputs: int, width: int, quantized: bool) -> tuple[int, int]:
    """Inputs of a split, and how many splits there are: a property of the layer, since it fixes the order of sums."""
    tiles, splits = -(-outputs // TILES[0][1].outs), 1
    programs = QUANTIZED_PROGRAMS if quantized else PROGRAMS
    while tiles * splits < programs and width // (2 * splits) >= SHORTEST_SPLIT and splits < MAX_SPLITS:
        splits *= 2
    length = -(-width // (splits * SPLIT_STEP)) * SPLIT_STEP
    return length, -(-width // length)
