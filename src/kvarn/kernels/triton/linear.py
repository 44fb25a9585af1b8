"""Linear layers by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton

from kvarn.kernels.activation import Activation
from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.checks import check_rows
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.device_weight import DeviceWeight
from kvarn.kernels.triton.jit import elementwise, linear
from kvarn.kernels.triton.launch import TRITON_TYPES, launch_options, multiplied_type
from kvarn.kernels.triton.many_rows import multiply_many, takes_many
from kvarn.kernels.triton.tiles import FEW_APART_BELOW, Tile, apart_below, splits_of, tile_of, tiles_for
from kvarn.kernels.weights import Weight

NORMED_IN_PRODUCT = 4
"""Rows at most whose norm each tile of a product works out by itself; more are normed once, by a kernel of their own.
Both round alike."""


@dataclass(slots=True)
class Workspace:
    """Memory that the splits of a product share; products run one after the other, so all layers use the same."""

    device: torch.device
    partials: torch.Tensor = field(init=False)
    """float32."""
    arrivals: torch.Tensor = field(init=False)
    """int32 zeros, one for each tile."""
    multiprocessors: int = field(init=False)

    def __post_init__(self) -> None:
        self.partials = torch.empty(0, dtype=torch.float32, device=self.device)
        self.arrivals = torch.zeros(FEW_APART_BELOW, dtype=torch.int32, device=self.device)
        on_gpu = self.device.type == "cuda"
        self.multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count if on_gpu else 3

    def reserve(self, sums: int) -> None:
        if len(self.partials) < sums:
            self.partials = torch.empty(sums, dtype=torch.float32, device=self.device)


class TritonLinear:
    """See `kvarn.kernels.linear.Linear`."""

    def __init__(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        activation: Activation | None,
        workspace: Workspace,
    ) -> None:
        """Raises KernelInputError for a weight that the kernels cannot read."""
        parts = 1 if activation is None else 2
        self.weight = held = DeviceWeight.of(weight, parts)
        self.activation = activation
        self.bias = bias
        self.out_features = weight.values.shape[0] // parts
        self.in_features = weight.values.shape[1]
        self.nbytes = held.nbytes
        self.input_order = weight.input_order
        self.adapter_layer = -1
        self._workspace = workspace
        self._splits = splits_of(self.out_features, held.width, held.is_quantized)
        tiles = [tile for _, tile in tiles_for(parts == 2, held.is_quantized)]
        sums = max(apart_below(tile.rows, held.is_quantized) * tile.rows * tile.outs for tile in tiles)
        workspace.reserve(self._splits[1] * parts * sums)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """One product, and for more than a few rows one norm before it."""
        if self.input_order is not None:
            x = x[:, self.input_order]
            norm = None if norm is None else Norm(norm.weight[self.input_order], norm.eps)
        if norm is not None and len(x) > NORMED_IN_PRODUCT:
            x, norm = norm_rows(x, norm), None
        if adapters is None or self.adapter_layer < 0:
            out = x.new_empty((len(x), self.out_features)) if add_to is None else add_to
            return self._multiply(self.weight, x, norm, out, add_to, self.activation)
        if norm is not None:
            x = norm_rows(x, norm)
        # In float32 and rounded once, as above: a row without an adapter has the bits that it has alone.
        sums = torch.empty(
            (len(x), self.out_features * (2 if self.activation else 1)), dtype=torch.float32, device=x.device
        )
        first = 0
        for part in self.weight.separate():
            self._multiply(part, x, None, sums[:, first : first + part.outputs], None, None)
            first += part.outputs
        adapters.add(self.adapter_layer, x, sums)
        return finish_rows(sums, self.activation, x.dtype, add_to)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.weight.rows(ids)[:, : self.in_features]
        return rows if self.input_order is None else torch.empty_like(rows).index_copy_(1, self.input_order, rows)

    def _multiply(
        self,
        held: DeviceWeight,
        x: torch.Tensor,
        norm: Norm | None,
        out: torch.Tensor,
        add_to: torch.Tensor | None,
        activation: Activation | None,
    ) -> torch.Tensor:
        num_rows, outputs = len(x), held.outputs
        check_rows(x, (num_rows, self.in_features), x.dtype)
        check_rows(out, (num_rows, outputs), x.dtype if out is add_to else out.dtype)
        if num_rows == 0:
            return out
        length, splits = self._splits
        if norm is None and takes_many(x, held, out, activation is not None):
            multiply_many(
                x, held, out, length, splits, self._workspace.multiprocessors,
                bias=self.bias, add_to=add_to, activation=activation,
            )  # fmt: skip
            return out
        tile = tile_of(num_rows, activation is not None, held.is_quantized)
        tiles = -(-outputs // tile.outs) * -(-num_rows // tile.rows)
        apart = splits > 1 and tiles < apart_below(tile.rows, held.is_quantized)
        launch_product(
            (tiles, splits if apart else 1), x, held, out, tile, inputs=self.in_features, split=length, splits=splits,
            apart=apart, workspace=self._workspace, norm=norm, bias=self.bias, add_to=add_to, activation=activation,
        )  # fmt: skip
        return out


def launch_product(
    grid: tuple[int, ...],
    x: torch.Tensor,
    weight: DeviceWeight,
    out: torch.Tensor,
    tile: Tile,
    *,
    inputs: int,
    split: int,
    splits: int = 1,
    apart: bool = False,
    workspace: Workspace | None = None,
    norm: Norm | None = None,
    bias: torch.Tensor | None = None,
    add_to: torch.Tensor | None = None,
    activation: Activation | None = None,
    head_stride: int = 0,
) -> None:
    """Launch `jit.linear.multiply`, which describes the arguments. Splits that are computed apart need a workspace."""
    linear.multiply[grid](
        x=x,
        weight=weight.values,
        scales=weight.scales,
        norm=None if norm is None else norm.weight,
        bias=bias,
        add_to=add_to,
        out=out,
        partials=None if workspace is None else workspace.partials,
        arrivals=None if workspace is None else workspace.arrivals,
        num_rows=len(x),
        eps=0.0 if norm is None else norm.eps,
        X_STRIDE=x.stride(0),
        OUT_STRIDE=out.stride(0),
        INPUTS=inputs,
        WIDTH=weight.width,
        OUTPUTS=weight.outputs,
        SPLIT=split,
        SPLITS=splits,
        APART=apart,
        FORMAT=weight.format,
        GROUP=weight.group,
        HAS_ZEROS=weight.has_zeros,
        HAS_SUB_SCALES=weight.has_sub_scales,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=add_to is not None,
        ACTIVATION=activation or "",
        HEAD_STRIDE=head_stride,
        NUMBERS=TRITON_TYPES[x.dtype],
        DOT=multiplied_type(x.dtype),
        ROWS=tile.rows,
        OUTS=tile.outs,
        STEP=weight.group or tile.step,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **(launch_options(len(x)) if head_stride == 0 else {}),
    )


def norm_rows(x: torch.Tensor, norm: Norm, add_to: torch.Tensor | None = None) -> torch.Tensor:
    """The root-mean-square norm of rows [T, size], or `add_to` with it added."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if add_to is None else add_to
    for tensor in (x, out):
        check_rows(tensor, tuple(x.shape), x.dtype)
    if len(x):
        elementwise.norm_rows[(len(x),)](
            x,
            norm.weight,
            out,
            norm.eps,
            x.stride(0),
            out.stride(0),
            x.shape[1],
            add_to is not None,
            **launch_options(len(x)),
        )
    return out


def finish_rows(
    sums: torch.Tensor, activation: Activation | None, dtype: torch.dtype, add_to: torch.Tensor | None
) -> torch.Tensor:
    """Finish the sums [T, out] float32 of a product: the activation (of gate and up side by side), the
    sum with `add_to` and the rounding to `dtype`."""
    size, block = sums.shape[1] // (1 if activation is None else 2), 1024
    out = sums.new_empty((len(sums), size), dtype=dtype) if add_to is None else add_to
    check_rows(out, (len(sums), size), dtype)
    if len(sums):
        elementwise.finish_rows[(len(sums), triton.cdiv(size, block))](
            sums,
            out,
            sums.stride(0),
            out.stride(0),
            size,
            activation or "",
            add_to is not None,
            block,
            **launch_options(len(sums)),
        )
    return out
