"""Products of plain weights with many rows: see `jit.many_rows`."""

from __future__ import annotations

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kvarn.kernels.activation import Activation
from kvarn.kernels.triton.device_weight import DeviceWeight
from kvarn.kernels.triton.jit import many_rows
from kvarn.kernels.triton.launch import multiplied_type
from kvarn.kernels.triton.tiles import MANY_ROWS_FROM, Tile, many_rows_from_tiles, many_rows_tile

ALIGNED = 16
"""Bytes whose multiples are the addresses and the strides that the copy engine takes."""
MULTIPLIED = (torch.bfloat16, torch.float16)


def takes_many(x: torch.Tensor, weight: DeviceWeight, out: torch.Tensor, gated: bool) -> bool:
    """Whether the large tiles of `jit.many_rows` fill a GPU, and the copy engine can bring them."""
    if len(x) < MANY_ROWS_FROM or weight.is_quantized:
        return False
    if {x.dtype, weight.values.dtype, out.dtype} not in ({kind} for kind in MULTIPLIED):
        return False
    tile = many_rows_tile(gated)
    if _num_tiles(len(x), weight.outputs, tile) < many_rows_from_tiles(x.shape[1], gated):
        return False
    numbers = ALIGNED // x.element_size()
    return all(
        tensor.data_ptr() % ALIGNED == 0 and tensor.stride(0) % numbers == 0 for tensor in (x, weight.values, out)
    )


def multiply_many(
    x: torch.Tensor,
    weight: DeviceWeight,
    out: torch.Tensor,
    split: int,
    splits: int,
    multiprocessors: int,
    *,
    bias: torch.Tensor | None,
    add_to: torch.Tensor | None,
    activation: Activation | None,
) -> None:
    """Launch `jit.many_rows.multiply_many` for what `takes_many`. `split` and `splits`: see `tiles.splits_of`."""
    tile = many_rows_tile(activation is not None)
    tiles = _num_tiles(len(x), weight.outputs, tile)
    chunk = [min(tile.rows, many_rows.CHUNK.value), tile.outs]
    many_rows.multiply_many[(tiles if activation else min(tiles, multiprocessors),)](
        _described(x, [tile.rows, tile.step]),
        _described(weight.values, [tile.outs, tile.step]),
        bias,
        None if add_to is None else _described(add_to, chunk),
        _described(out, chunk),
        len(x),
        INPUTS=x.shape[1],
        OUTPUTS=weight.outputs,
        SPLIT=split,
        SPLITS=splits,
        HAS_BIAS=bias is not None,
        ADDS=add_to is not None,
        ACTIVATION=activation or "",
        DOT=multiplied_type(x.dtype),
        ROWS=tile.rows,
        OUTS=tile.outs,
        STEP=tile.step,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _num_tiles(rows: int, outputs: int, tile: Tile) -> int:
    return int(triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outs))


def _described(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)
