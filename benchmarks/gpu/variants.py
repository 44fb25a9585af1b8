"""Kernels with the constants that large models give them: what the compile gate compiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

from benchmarks.gpu.grouped_variants import grouped_variants
from benchmarks.gpu.variant import TYPES, Variant
from kvarn.kernels.triton.attention import COMPARED, FEW_ROWS, HEADS_TOGETHER, KEYS, ROWS, STAGES, WARPS, stages_for
from kvarn.kernels.triton.delta import COLUMNS
from kvarn.kernels.triton.jit import (
    attention,
    cascade,
    delta,
    elementwise,
    latent,
    linear,
    many_rows,
    sampling,
    segments,
)
from kvarn.kernels.triton.latent import COLUMNS as LATENT_COLUMNS
from kvarn.kernels.triton.latent import KEYS as LATENT_KEYS
from kvarn.kernels.triton.segments import AHEAD, COUNTED, WIDE
from kvarn.kernels.triton.tiles import (
    TILES,
    Tile,
    apart_below,
    many_rows_tile,
    splits_of,
    tiles_for,
)

LAYERS = {
    "8B qkv": (4096, 6144, "", ("bf16", "fp8")),
    "8B gate, up": (4096, 14336, "silu", ("bf16", "fp8", "int4")),
    "0.6B down": (3072, 1024, "", ("int4",)),
}
"""Inputs, outputs, activation and formats of some layers. int8 is read as fp8 is."""
HEADS = {"8B": (32, 8, 128), "1B": (32, 8, 64)}
WIDE_HEADS = (16, 8, 256)
WHERE = {"programs": "*i32", "partials": "*i32"}
"""Types of what `segments.plan_splits` writes."""


def variants() -> Iterator[Variant]:
    """All that are compiled."""
    for layer, (inputs, outputs, activation, formats) in LAYERS.items():
        for form in formats:
            for _, tile in tiles_for(bool(activation), form != "bf16"):
                yield _product(layer, form, tile, inputs, outputs, activation)
        yield _many_rows(layer, inputs, outputs, activation)
    for model, heads in HEADS.items():
        for apart in (True, False):
            for rows in (FEW_ROWS, ROWS):
                yield _attention(model, "bf16", *heads, rows, apart=apart)
        yield _join(model, heads[0], heads[0] // heads[1], heads[2])
        yield _prepare(model, *heads)
    yield _attention("8B", "fp8e4nv", *HEADS["8B"], ROWS, apart=True)
    for rows in (FEW_ROWS, ROWS):
        yield _attention("heads of 256", "bf16", *WIDE_HEADS, rows, apart=True)
    for rows in (FEW_ROWS, ROWS):
        yield _attention("8B, window and softcap", "bf16", *HEADS["8B"], rows, apart=True, window=1024, softcap=True)
    yield _plan_splits()
    yield from _latent()
    yield from _cascade()
    yield from _delta()
    yield from _small()
    yield from grouped_variants()


def _product(layer: str, form: str, tile: Tile, inputs: int, outputs: int, activation: str) -> Variant:
    quantized = form != "bf16"
    length, splits = splits_of(outputs, inputs, quantized)
    normed = tile.rows == TILES[0][1].rows
    group = 128 if form == "int4" else 0
    types = {
        "x": "*bf16",
        "weight": TYPES[form],
        "out": "*bf16",
        "partials": "*fp32",
        "arrivals": "*i32",
    }
    types |= {"num_rows": "i32", "eps": "fp32"}
    if form != "bf16":
        types["scales"] = "*i64" if group else "*fp32"
    if normed:
        types["norm"] = "*fp32"
    if not activation:
        types["add_to"] = "*bf16"
    constants = {
        "X_STRIDE": inputs,
        "OUT_STRIDE": outputs,
        "INPUTS": inputs,
        "WIDTH": inputs,
        "OUTPUTS": outputs,
        "SPLIT": length,
        "SPLITS": splits,
        "APART": splits > 1 and -(-outputs // tile.outs) < apart_below(tile.rows, quantized),
        "FORMAT": "4 bits" if group else "8 bits" if quantized else "plain",
        "GROUP": group,
        "HAS_ZEROS": False,
        "HAS_SUB_SCALES": bool(group),
        "HAS_NORM": normed,
        "HAS_BIAS": False,
        "ADDS": not activation,
        "ACTIVATION": activation,
        "HEAD_STRIDE": 0,
        "NUMBERS": tl.bfloat16,
        "DOT": tl.bfloat16,
        "ROWS": tile.rows,
        "OUTS": tile.outs,
        "STEP": group or tile.step,
    }
    name = f"product, {layer}, {form}, {tile.rows} rows, {tile.stages} stages"
    return Variant(name, linear.multiply, types, constants, tile.warps, tile.stages, 255, tile.rows <= 16)


def _many_rows(layer: str, inputs: int, outputs: int, activation: str) -> Variant:
    length, splits = splits_of(outputs, inputs, quantized=False)
    tile = many_rows_tile(bool(activation))
    chunk = f"tensordesc<bf16[{many_rows.CHUNK.value}, {tile.outs}]>"
    types = {
        "x": f"tensordesc<bf16[{tile.rows}, {tile.step}]>",
        "weight": f"tensordesc<bf16[{tile.outs}, {tile.step}]>",
    }
    types |= {"out": chunk, "num_rows": "i32"} | ({} if activation else {"bias": "*fp32", "add_to": chunk})
    constants = {"INPUTS": inputs, "OUTPUTS": outputs, "SPLIT": length, "SPLITS": splits, "HAS_BIAS": not activation}
    constants |= {"ADDS": not activation, "ACTIVATION": activation, "DOT": tl.bfloat16}
    constants |= {"ROWS": tile.rows, "OUTS": tile.outs, "STEP": tile.step}
    name = f"product, {layer}, bf16, many rows"
    return Variant(name, many_rows.multiply_many, types, constants, tile.warps, tile.stages, 255, True, 2)


def _attention(
    model: str,
    cache: str,
    heads: int,
    kv: int,
    dim: int,
    rows: int,
    *,
    apart: bool,
    window: int = 0,
    softcap: bool = False,
) -> Variant:
    types = {"queries": "*bf16", "keys": f"*{cache}", "values": f"*{cache}", "tables": "*i32", "context_lens": "*i32"}
    types |= {"query_starts": "*i32", "out": "*bf16", "parts": "*fp32", "part_stats": "*fp32", "scale": "fp32"}
    types |= {"softcap": "fp32", "num_sequences": "i32", "table_stride": "i32"} | WHERE
    constants = {
        "QUERY_HEADS": heads,
        "KV_HEADS": kv,
        "DIM": dim,
        "WINDOW": window,
        "HAS_SOFTCAP": softcap,
        "HAS_SINKS": False,
        "TOGETHER": rows * kv // heads,
    }
    constants |= {"APART": apart, "NUMBERS": tl.bfloat16, "DOT": tl.bfloat16, "ROWS": rows, "KEYS": KEYS, "BLOCK": dim}
    name = f"attention, {model}, {cache} cache, {rows} rows{', segments apart' if apart else ''}"
    return Variant(name, attention.attend, types, constants, WARPS, stages_for(dim), 255, True)


def _join(model: str, heads: int, group: int, dim: int) -> Variant:
    types = {"parts": "*fp32", "part_stats": "*fp32", "query_starts": "*i32", "context_lens": "*i32"}
    types |= {"partials": "*i32", "tokens": "*i32", "out": "*bf16", "num_sequences": "i32"}
    constants = {"HEADS": heads, "GROUP": group, "DIM": dim, "WINDOW": 0, "HAS_SINKS": False}
    return Variant(
        f"join segments, {model}",
        segments.join,
        types,
        constants | {"AHEAD": AHEAD, "BLOCK": dim},
        4 if dim >= WIDE else 1,
    )


def _plan_splits() -> Variant:
    types = {"query_starts": "*i32", "context_lens": "*i32", "tokens": "*i32"} | WHERE
    types |= {"num_sequences": "i32", "extra": "i32", "min_segments": "i32", "room": "i32"}
    constants = {"TOGETHER": 16, "WINDOW": 0, "ALWAYS": False, "BLOCK": COUNTED}
    return Variant("divide long sequences", segments.plan_splits, types, constants)


def _prepare(model: str, heads: int, kv: int, dim: int) -> Variant:
    types = {"qkv": "*bf16", "cos": "*fp32", "sin": "*fp32", "norm": "*fp32", "slots": "*i64", "queries": "*bf16"}
    types |= {"keys": "*bf16", "values": "*bf16", "eps": "fp32"}
    constants = {"QKV_STRIDE": (heads + 2 * kv) * dim, "QUERY_HEADS": heads, "KV_HEADS": kv, "DIM": dim}
    constants |= {"HALF": dim // 2, "HAS_NORM": True, "BLOCK": dim, "HEADS": HEADS_TOGETHER}
    return Variant(f"norm, rotate, cache, {model}", attention.prepare, types, constants)


def _latent() -> Iterator[Variant]:
    types = {"queries": "*bf16", "cache": "*bf16", "tables": "*i32", "context_lens": "*i32", "query_starts": "*i32"}
    types |= {"parts": "*fp32", "part_stats": "*fp32", "scale": "fp32", "num_sequences": "i32", "table_stride": "i32"}
    types |= {"first_token": "i32", "num_tokens": "i32", "room": "i32", "out": "*bf16"} | WHERE
    for model, heads in (("V2-Lite", 16), ("V3", 128)):
        constants = {"HEADS": heads, "HEADS_TOGETHER": min(heads, ROWS), "SIZE": 576, "VALUE": 512, "ROWS": ROWS}
        constants |= {"KEYS": LATENT_KEYS, "NUMBERS": tl.bfloat16, "DOT": tl.bfloat16}
        constants |= {"VALUE_BLOCK": 512, "REST_BLOCK": 64, "COLUMNS": LATENT_COLUMNS}
        yield Variant(f"latent attention, DeepSeek-{model}", latent.attend, types, constants, 8, 2, 255, True)
        yield _join(f"DeepSeek-{model}", heads, heads, 512)
    constants = {"STRIDE": 576, "SIZE": 576, "BLOCK": 1024}
    types = {"rows": "*bf16", "slots": "*i64", "cache": "*bf16"}
    yield Variant("latent rows, cache", latent.write, types, constants)


def _cascade() -> Iterator[Variant]:
    types = {"tables": "*i32", "context_lens": "*i32", "members": "*i32", "num_sequences": "i32", "table_stride": "i32"}
    yield Variant("shared prefixes", cascade.find_shared, types, {"TOGETHER": 16, "SLOTS": 16, "BLOCK": COMPARED})
    heads, kv, dim = HEADS["8B"]
    types |= {"queries": "*bf16", "keys": "*bf16", "values": "*bf16", "parts": "*fp32", "part_stats": "*fp32"}
    types |= {"scale": "fp32", "softcap": "fp32", "partials": "*i32"}
    constants = {"QUERY_HEADS": heads, "KV_HEADS": kv, "DIM": dim, "HAS_SOFTCAP": False, "TOGETHER": 16, "SLOTS": 16}
    constants |= {"NUMBERS": tl.bfloat16, "DOT": tl.bfloat16, "ROWS": ROWS, "KEYS": KEYS, "BLOCK": dim}
    yield Variant("attention, 8B, shared prefixes", cascade.attend, types, constants, WARPS, STAGES, 255, True)


def _delta() -> Iterator[Variant]:
    """Of Qwen3-Next 80B."""
    same = {"query_starts": "*i32", "places": "*i64", "saves": "*i64"}
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY": 128, "VALUE": 128}
    types = same | {"projected": "*bf16", "rates": "*bf16", "convolution": "*fp32", "decay": "*fp32", "rows": "*i64"}
    types |= {"decay_bias": "*fp32", "inputs": "*fp32", "mixed": "*fp32", "factors": "*fp32", "eps": "fp32"}
    constants = heads | {"STRIDE": 12288, "RATES_STRIDE": 64, "WINDOW": 4, "BLOCK": 128}
    yield Variant("delta rule: convolution", delta.mix, types, constants, 1)
    types = same | {"mixed": "*fp32", "factors": "*fp32", "matrices": "*fp32", "out": "*fp32"}
    constants = heads | {"KEY_BLOCK": 128, "COLUMNS": COLUMNS}
    yield Variant("delta rule: states", delta.advance, types, constants, wide_loads=True)
    types = {"query_starts": "*i32", "places": "*i64", "rows": "*i64", "projected": "*bf16", "norm": "*fp32"}
    types |= {"mixed": "*fp32", "inputs": "*fp32", "out": "*bf16", "eps": "fp32"}
    constants = {"STRIDE": 12288, "CHANNELS": 8192, "VALUE_HEADS": 32, "VALUE": 128, "WINDOW": 4, "BLOCK": 128}
    constants |= {"SLICE": 256, "SLICE_BLOCK": 256, "WINDOW_BLOCK": 4}
    yield Variant("delta rule: norm and gate", delta.finish, types, constants, 1)


def _small() -> Iterator[Variant]:
    size, vocab = 4096, 128256
    types = {"x": "*bf16", "weight": "*fp32", "out": "*bf16", "eps": "fp32"}
    constants: dict[str, Any] = {"X_STRIDE": size, "OUT_STRIDE": size, "SIZE": size, "ADDS": False}
    yield Variant("norm", elementwise.norm_rows, types, constants)
    constants = {"STRIDE": 2 * 14336, "OUT_STRIDE": 14336, "SIZE": 14336, "ACTIVATION": "silu", "ADDS": False}
    types = {"sums": "*fp32", "out": "*bf16"}
    yield Variant("activation, gate and up", elementwise.finish_rows, types, constants | {"BLOCK": 1024})
    types = {"logits": "*fp32", "tokens": "*i64", "maxima": "*fp32"}
    sizes = {"STRIDE": vocab, "VOCAB": vocab, "BLOCK": 4096}
    yield Variant("most likely token", sampling.most_likely, types, sizes, 8)
    types = {"logits": "*fp32", "rows": "*i64", "words": "*i32"}
    yield Variant("masks", sampling.mask_rows, types, sizes | {"WORDS": vocab // 32})
    yield from _drawing(sizes | {"UNIT": 2.0**35})


def _drawing(sizes: dict[str, Any]) -> Iterator[Variant]:
    weighed = {"logits": "*fp32", "rows": "*i64", "row_max": "*fp32", "temperatures": "*fp32"}
    filters = {"top_ks": "*i64", "top_ps": "*fp64", "min_ps": "*fp32"}
    surveyed = {"sums": "*fp64", "counts": "*i32"}
    lists = {"listed": "*fp32", "ids": "*i32", "lengths": "*i32"}
    lengths = sizes | {"SPLITS": 32, "TABLE": 32, "CAPACITY": 8192}
    yield Variant("survey of weights", sampling.survey, weighed | filters | surveyed, sizes)
    yield Variant("list of the heaviest", sampling.gather, weighed | filters | surveyed | lists, lengths)
    drawn = weighed | filters | {"uniforms": "*fp64", "sums": "*fp64"} | lists | {"tokens": "*i64"}
    yield Variant("draw", sampling.draw, drawn, lengths, 8)
