"""Linear layers on weights as the Triton kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
import triton

from kvarn.kernels.activation import Activation
from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm
from kvarn.kernels.triton.jit import elementwise, linear
from kvarn.kernels.triton.numbers import TRITON_TYPES, multiplied_type
from kvarn.kernels.weights import MULTIPLIED, Weight

NORMED_IN_PRODUCT = 4
"""Rows at most whose norm each tile of a product works out by itself; more are normed once, by a kernel of their own.
Both round alike."""
PROGRAMS = 256
"""Programs that keep every multiprocessor of a large GPU reading: inputs are split until a product with few rows has so
many."""
SHORTEST_SPLIT = 256
MOST_SPLITS = 16
SPLIT_STEP = 128
"""A split is a whole number of these, and of a tile's inputs."""
APART_BELOW = 132
"""Splits are computed by programs of their own where there are fewer tiles than this."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product with some number of rows is cut up. It changes no bit."""

    rows: int
    outs: int
    step: int
    warps: int
    stages: int


TILES = (Tile(16, 64, 128, 4, 4), Tile(32, 64, 128, 4, 4), Tile(64, 64, 128, 4, 3), Tile(128, 128, 64, 8, 3))
"""By the rows that fit. Larger numbers of rows take the last one."""
GATED_TILES = (Tile(16, 64, 128, 4, 3), Tile(32, 64, 64, 4, 3), Tile(64, 64, 64, 8, 3), Tile(128, 64, 64, 8, 3))
"""With an activation: a tile has twice as many weights and sums."""
GATED_4_BIT_TILES = (Tile(16, 64, 128, 4, 3), Tile(32, 64, 128, 8, 3), Tile(64, 64, 128, 8, 2))


def tiles_for(gated: bool, group: int) -> tuple[Tile, ...]:
    """Those of a layer; `group`: inputs that share a scale, of a weight of 4 bits."""
    return (GATED_4_BIT_TILES if group else GATED_TILES) if gated else TILES


def tile_of(num_rows: int, gated: bool, group: int) -> Tile:
    """The tile for so many rows."""
    tiles = tiles_for(gated, group)
    return next((tile for tile in tiles if num_rows <= tile.rows), tiles[-1])


@dataclass(slots=True)
class Workspace:
    """Memory that the splits of a product share; products run one after the other, so all layers use the same."""

    device: torch.device
    partials: torch.Tensor = field(init=False)
    """float32."""
    arrivals: torch.Tensor = field(init=False)
    """int32 zeros, one for each tile."""

    def __post_init__(self) -> None:
        self.partials = torch.empty(0, dtype=torch.float32, device=self.device)
        self.arrivals = torch.zeros(APART_BELOW, dtype=torch.int32, device=self.device)

    def reserve(self, numbers: int) -> None:
        """Have room for so many partial sums."""
        if len(self.partials) < numbers:
            self.partials = torch.empty(numbers, dtype=torch.float32, device=self.device)


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A weight [out, in] as `jit.linear.multiply` reads it."""

    values: torch.Tensor
    """[out, width]: plain, int8 or fp8; 4 bits: uint8 [out, width / 2]."""
    width: int
    """Inputs of a row as it is held; those behind the real ones count as zero."""
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    multipliers: torch.Tensor | None = None
    group: int = 0

    @property
    def format(self) -> str:
        """As the kernel knows it."""
        return "4 bits" if self.group else "plain" if self.scales is None else "8 bits"

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for weights that one compiled kernel reads."""
        zeros, multipliers = self.zeros is not None, self.multipliers is not None
        return self.format, self.values.dtype, self.values.shape, self.width, self.group, zeros, multipliers

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return sum(t.nbytes for t in (self.values, self.scales, self.zeros, self.multipliers) if t is not None)

    @staticmethod
    def of(weight: Weight) -> DeviceWeight:
        """Bring a weight into this form, where it is."""
        if weight.format == "float":
            return DeviceWeight(weight.values.contiguous(), weight.values.shape[1])
        assert weight.scales is not None
        if not weight.group:
            return DeviceWeight(weight.values.contiguous(), weight.values.shape[1], weight.scales.float().contiguous())
        group = next(size for size in (128, 64, 32, weight.group) if weight.group % size == 0)
        if group % MULTIPLIED:
            raise KernelInputError(f"groups of {group} inputs: these kernels take multiples of {MULTIPLIED}")
        out, size = weight.values.shape
        width = -(-size // group) * group
        values = F.pad(weight.values, (0, width - size)).view(out, -1, 2, group // 2)
        repeats = weight.group // group

        def by_group(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.repeat_interleave(repeats, 1)[:, : width // group].contiguous()

        multipliers = weight.multipliers
        if multipliers is not None:
            multipliers = F.pad(multipliers, (0, width // MULTIPLIED - multipliers.shape[1])).contiguous()
        return DeviceWeight(
            (values[:, :, 0] | values[:, :, 1] << 4).reshape(out, -1),
            width,
            by_group(weight.scales),
            None if weight.zeros is None else by_group(weight.zeros),
            multipliers,
            group,
        )

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, [len(ids), width], in float32 or, where it is plain, in its own type."""
        values = F.embedding(ids, self.values) if self.format == "plain" else self.values[ids]
        if self.scales is None:
            return values
        if not self.group:
            return values.float() * self.scales[ids, None]
        halves = values.view(len(ids), -1, 1, self.group // 2)
        codes = torch.cat([halves & 15, halves >> 4], 2).view(len(ids), self.width).float()
        zeros = 8.0 if self.zeros is None else self.zeros[ids].float().repeat_interleave(self.group, 1)
        codes -= zeros
        if self.multipliers is not None:
            codes *= self.multipliers[ids].float().repeat_interleave(MULTIPLIED, 1)
        return codes * self.scales[ids].float().repeat_interleave(self.group, 1)


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
        self.weight = DeviceWeight.of(weight)
        self.activation = activation
        self.bias = bias
        self.out_features = weight.values.shape[0] // (1 if activation is None else 2)
        self.in_features = weight.values.shape[1]
        self.nbytes = self.weight.nbytes
        self.input_order = weight.input_order
        self.adapter_layer = -1
        self._workspace = workspace
        self._splits = splits_of(self.out_features, self.weight.width)
        areas = [2 * tile.rows * tile.outs for tile in GATED_TILES] + [tile.rows * tile.outs for tile in TILES]
        workspace.reserve(APART_BELOW * self._splits[1] * max(areas))

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
            return self._multiply(x, norm, out, add_to, self.activation)
        if norm is not None:
            x = norm_rows(x, norm)
        # In float32 and rounded once, as above: a row without an adapter has the bits that it has alone.
        sums = torch.empty((len(x), self.weight.values.shape[0]), dtype=torch.float32, device=x.device)
        adapters.add(self.adapter_layer, x, self._multiply(x, None, sums, None, None))
        return finish_rows(sums, self.activation, x.dtype, add_to)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """A gather."""
        rows = self.weight.rows(ids)[:, : self.in_features]
        return rows if self.input_order is None else torch.empty_like(rows).index_copy_(1, self.input_order, rows)

    def _multiply(
        self,
        x: torch.Tensor,
        norm: Norm | None,
        out: torch.Tensor,
        add_to: torch.Tensor | None,
        activation: Activation | None,
    ) -> torch.Tensor:
        num_rows, held = len(x), self.weight
        outputs = held.values.shape[0] // (1 if activation is None else 2)
        check_rows(x, (num_rows, self.in_features), x.dtype)
        check_rows(out, (num_rows, outputs), x.dtype if out is add_to else out.dtype)
        if num_rows == 0:
            return out
        tile = tile_of(num_rows, activation is not None, held.group)
        tiles = -(-outputs // tile.outs) * -(-num_rows // tile.rows)
        length, splits = self._splits
        apart = splits > 1 and tiles < APART_BELOW
        linear.multiply[(tiles, splits if apart else 1)](
            x,
            held.values,
            held.scales,
            held.multipliers,
            held.zeros,
            None if norm is None else norm.weight,
            self.bias,
            add_to,
            out,
            self._workspace.partials,
            self._workspace.arrivals,
            num_rows,
            0.0 if norm is None else norm.eps,
            X_STRIDE=x.stride(0),
            OUT_STRIDE=out.stride(0),
            INPUTS=self.in_features,
            WIDTH=held.width,
            OUTPUTS=outputs,
            SPLIT=length,
            SPLITS=splits,
            APART=apart,
            FORMAT=held.format,
            GROUP=held.group,
            HAS_ZEROS=held.zeros is not None,
            HAS_MULTIPLIERS=held.multipliers is not None,
            HAS_NORM=norm is not None,
            HAS_BIAS=self.bias is not None,
            ADDS=add_to is not None,
            ACTIVATION=activation or "",
            HEAD_STRIDE=0,
            NUMBERS=TRITON_TYPES[x.dtype],
            DOT=multiplied_type(x.dtype),
            ROWS=tile.rows,
            OUTS=tile.outs,
            STEP=held.group or tile.step,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out


def splits_of(outputs: int, width: int) -> tuple[int, int]:
    """Inputs of a split, and how many splits there are: a property of the layer, since it fixes the order of sums."""
    tiles, splits = -(-outputs // TILES[0].outs), 1
    while tiles * splits < PROGRAMS and width // (2 * splits) >= SHORTEST_SPLIT and splits < MOST_SPLITS:
        splits *= 2
    length = -(-width // (splits * SPLIT_STEP)) * SPLIT_STEP
    return length, -(-width // length)


def norm_rows(x: torch.Tensor, norm: Norm, add_to: torch.Tensor | None = None) -> torch.Tensor:
    """The root-mean-square norm of rows [T, size], or `add_to` with it added."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if add_to is None else add_to
    for tensor in (x, out):
        check_rows(tensor, tuple(x.shape), x.dtype)
    if len(x):
        elementwise.norm_rows[(len(x),)](
            x, norm.weight, out, norm.eps, x.stride(0), out.stride(0), x.shape[1], add_to is not None
        )
    return out


def finish_rows(
    sums: torch.Tensor, activation: Activation | None, dtype: torch.dtype, add_to: torch.Tensor | None
) -> torch.Tensor:
    """What a product does with its sums [T, out] float32 at the end: the activation (of gate and up side by side), the
    sum with `add_to` and the rounding to `dtype`."""
    size, block = sums.shape[1] // (1 if activation is None else 2), 1024
    out = sums.new_empty((len(sums), size), dtype=dtype) if add_to is None else add_to
    check_rows(out, (len(sums), size), dtype)
    if len(sums):
        elementwise.finish_rows[(len(sums), triton.cdiv(size, block))](
            sums, out, sums.stride(0), out.stride(0), size, activation or "", add_to is not None, block
        )
    return out


def check_rows(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise KernelInputError unless a tensor has this shape and type, and contiguous rows."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or (shape[-1] > 1 and tensor.stride(-1) != 1):
        raise KernelInputError(
            f"rows must be {dtype} {list(shape)}, numbers side by side, not {tensor.dtype} {list(tensor.shape)} with "
            f"strides {tensor.stride()}"
        )
