"""Kernels of mixtures of experts and of adapters with the constants that models give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

from benchmarks.gpu.variant import TYPES, Variant
from kvarn.kernels.triton.adapters import FEWEST, PANELS, ROWS, SPLIT, STEP
from kvarn.kernels.triton.experts import SUMMED
from kvarn.kernels.triton.groups import SORTED
from kvarn.kernels.triton.jit import adapters, experts, groups, router
from kvarn.kernels.triton.tiles import TILES, Tile, tiles_for

MIXTURES = {
    "30B mixture": (2048, 768, 128, 8, "silu", ("bf16", "fp8", "int4")),
    "gpt-oss 20B": (2880, 2880, 32, 4, "clamped_swiglu", ("bf16",)),
}
"""Hidden size, inner size, experts, experts of a token, activation, formats."""


def grouped_variants() -> Iterator[Variant]:
    """All of them."""
    for model, (hidden, inner, num_experts, each, activation, formats) in MIXTURES.items():
        for form in formats:
            for first in (True, False):
                tiles = [tile for _, tile in tiles_for(first, form != "bf16")]
                for tile in tiles if form == "bf16" and inner < hidden else tiles[:1]:
                    sizes = (hidden, inner) if first else (inner, hidden)
                    own = activation if first else ""
                    yield _product(model, form, tile, *sizes, num_experts, each, own)
    types = {"groups": "*i64", "slots": "*i64", "order": "*i32", "starts": "*i32", "visits": "*i64", "count": "i32"}
    constants: dict[str, Any] = {"EACH": 8, "GROUPS": 128, "HAS_SLOTS": True, "COUNTS": True, "BLOCK": SORTED}
    yield Variant("sort by expert", groups.sort, types, constants)
    types = {"numbers": "*bf16", "choice_bias": "*fp32", "shares": "*fp32", "chosen": "*i64", "scale": "fp32"}
    constants = {"STRIDE": 256, "EXPERTS": 256, "EACH": 8, "SOFTMAX": False, "HAS_BIAS": True, "GROUPS": 8}
    constants |= {"GROUPS_EACH": 4, "BEST_TWO": True, "RENORMALIZE": True, "BLOCK": 256, "EACH_BLOCK": 8}
    yield Variant("choice of experts", router.route, types, constants, 1)
    types = {"parts": "*fp32", "slots": "*i64", "out": "*bf16"}
    constants = {"OUT_STRIDE": 2048, "SIZE": 2048, "EACH": 8, "HAS_SHARED": False, "ADDS": True, "BLOCK": SUMMED}
    yield Variant("sum over experts", experts.add_up, types, constants, wide_loads=True)
    yield from _adapters()


def _product(
    model: str, form: str, tile: Tile, inputs: int, outputs: int, num_experts: int, each: int, activation: str
) -> Variant:
    group = 128 if form == "int4" else 0
    types = {"x": "*bf16", "weight": TYPES[form], "order": "*i32", "starts": "*i32", "num_rows": "i32"}
    types |= {"shares": "*fp32", "out": "*bf16" if activation else "*fp32"}
    if form != "bf16":
        types["scales"] = "*i64" if group else "*fp32"
    if activation == "clamped_swiglu":
        types["bias"] = "*bf16"
    constants = {
        "X_STRIDE": inputs,
        "INPUTS": inputs,
        "WIDTH": inputs,
        "OUTPUTS": outputs,
        "LENGTH": -(-inputs // 128) * 128,
        "FORMAT": "plain" if form == "bf16" else "4 bits" if group else "8 bits",
        "GROUP": group,
        "HAS_ZEROS": False,
        "HAS_SUB_SCALES": bool(group),
        "HAS_BIAS": activation == "clamped_swiglu",
        "ACTIVATION": activation,
        "LIMIT": 7.0,
        "ALPHA": 1.702,
        "EACH": each,
        "EXPERTS": num_experts,
        "EXPERTS_BLOCK": num_experts,
        "NUMBERS": tl.bfloat16,
        "DOT": tl.bfloat16,
        "ROWS": tile.rows,
        "OUTS": tile.outs,
        "STEP": group or tile.step,
    }
    name = f"experts' {'gate, up' if activation else 'down'}, {model}, {form}, {tile.rows} rows, {tile.stages} stages"
    wide = tile.rows <= TILES[0][1].rows
    return Variant(name, experts.multiply, types, constants, tile.warps, tile.stages, 255, wide)


def _adapters() -> Iterator[Variant]:
    same = {"order": "*i32", "starts": "*i32", "pages": "*i64", "places": "*i32"}
    same |= {"sums": "*fp32", "num_rows": "i32", "layer": "i32", "num_layers": "i32", "num_pages": "i32"}
    constants = {
        "INPUTS": 4096,
        "PARTS": 3,
        "RANK": 16,
        "LINES_PER_PAGE": 512,
        "ADAPTERS": FEWEST,
        "ADAPTERS_BLOCK": FEWEST,
        "NUMBERS": tl.bfloat16,
        "PER_LINE": 2,
        "ROWS": ROWS,
    }
    shrink = constants | {"X_STRIDE": 4096, "SPLIT": SPLIT, "STEP": STEP, "DOT": tl.bfloat16}
    yield Variant("adapters: A x", adapters.shrink, same | {"x": "*bf16"}, shrink, wide_loads=True)
    expand = constants | {"OUT_STRIDE": 6144, "SPLITS": 4, "PANELS": PANELS}
    types = same | {"scales": "*fp32", "out": "*fp32"}
    yield Variant("adapters: B (A x)", adapters.expand, types, expand, 1, wide_loads=True)
