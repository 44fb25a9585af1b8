"""Mixtures of experts by the Triton kernels: see `jit.experts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from kvarn.kernels.checks import check_rows
from kvarn.kernels.triton.device_weight import OUTPUTS_TOGETHER, DeviceWeight
from kvarn.kernels.triton.groups import SortedRows, sort_rows
from kvarn.kernels.triton.jit import experts
from kvarn.kernels.triton.launch import TRITON_TYPES, multiplied_type
from kvarn.kernels.triton.linear import TritonLinear
from kvarn.kernels.triton.tiles import SPLIT_STEP, Tile, tile_of

SUMMED = 1024
"""Numbers of a token that a program adds up."""


@dataclass(frozen=True, slots=True)
class _Product:
    """One product of all experts."""

    weight: DeviceWeight
    """The weights of all experts, one below the other."""
    bias: torch.Tensor | None
    """[experts, outputs]."""
    outputs: int
    """Outputs of one expert, gate and up counted once."""
    activation: str
    clamp: tuple[float, float]
    """Limit and slope of the activation `clamped_swiglu`."""

    @staticmethod
    def of(layers: Sequence[TritonLinear], clamp: tuple[float, float] | None = None) -> _Product:
        """Move the layers' weights into one. The layers go on as parts of it. `clamp`: they give gate beside up, which
        `clamped_swiglu` is to join."""
        first = layers[0]
        held: dict[str, Any] = {}
        for field in ("values", "scales"):
            tensors = [getattr(layer.weight, field) for layer in layers]
            if tensors[0] is not None:
                held[field] = torch.stack(tensors)
        for number, layer in enumerate(layers):
            layer.weight = replace(layer.weight, **{field: stacked[number] for field, stacked in held.items()})
        bias = None if first.bias is None else torch.stack([layer.bias for layer in layers if layer.bias is not None])
        activation = "clamped_swiglu" if clamp else first.activation or ""
        outputs = first.out_features // 2 if clamp else first.out_features
        return _Product(replace(first.weight, **held), bias, outputs, activation, clamp or (0.0, 0.0))

    def tile(self, pairs: int, num_experts: int) -> Tile:
        """For so many pairs, spread evenly. It changes no bit."""
        return tile_of(-(-pairs // num_experts), bool(self.activation), self.weight.is_quantized)

    def run(self, x: torch.Tensor, rows: SortedRows, tile: Tile, each: int, shares: torch.Tensor) -> torch.Tensor:
        weight, gated = self.weight, bool(self.activation)
        pairs = len(rows.order)
        out = torch.empty((pairs, self.outputs), dtype=x.dtype if gated else torch.float32, device=x.device)
        experts.multiply[(rows.num_tiles(tile.rows), triton.cdiv(self.outputs, tile.outs))](
            x,
            weight.values,
            weight.scales,
            self.bias,
            rows.order,
            rows.starts,
            shares,
            out,
            len(x),
            X_STRIDE=x.stride(0),
            INPUTS=x.shape[1],
            WIDTH=weight.width,
            OUTPUTS=self.outputs,
            LENGTH=-(-weight.width // SPLIT_STEP) * SPLIT_STEP,
            FORMAT=weight.format,
            GROUP=weight.group,
            HAS_ZEROS=weight.has_zeros,
            HAS_SUB_SCALES=weight.has_sub_scales,
            HAS_BIAS=self.bias is not None,
            ACTIVATION=self.activation,
            LIMIT=self.clamp[0],
            ALPHA=self.clamp[1],
            EACH=each,
            EXPERTS=rows.num_groups,
            EXPERTS_BLOCK=triton.next_power_of_2(rows.num_groups),
            NUMBERS=TRITON_TYPES[x.dtype],
            DOT=multiplied_type(x.dtype),
            ROWS=tile.rows,
            OUTS=tile.outs,
            STEP=weight.group or tile.step,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out


class TritonExperts:
    """See `kvarn.kernels.experts.GroupedExperts`. Four kernels: tokens are sorted by expert, two products, the sum."""

    def __init__(
        self, gate_up: Sequence[TritonLinear], down: Sequence[TritonLinear], clamp: tuple[float, float] | None
    ) -> None:
        self._gate_up, self._down = _Product.of(gate_up, clamp), _Product.of(down)
        self._hidden = down[0].out_features
        self.visits = torch.zeros(len(down), dtype=torch.int64, device=down[0].weight.values.device)

    def __call__(
        self,
        x: torch.Tensor,
        shares: torch.Tensor,
        chosen: torch.Tensor,
        slots: torch.Tensor,
        shared: torch.Tensor | None,
        add_to: torch.Tensor | None,
    ) -> torch.Tensor:
        out = torch.empty_like(x) if add_to is None else add_to
        for tensor in (x, out):
            check_rows(tensor, (len(x), self._hidden), x.dtype)
        if len(x) == 0:
            return out
        each, num_experts = chosen.shape[1], len(self.visits)
        rows = sort_rows(chosen.flatten(), num_experts, slots=slots, visits=self.visits)
        shares = shares.contiguous()
        inner = self._gate_up.run(x, rows, self._gate_up.tile(chosen.numel(), num_experts), each, shares)
        parts = self._down.run(inner, rows, self._down.tile(chosen.numel(), num_experts), each, shares)
        experts.add_up[(len(x), triton.cdiv(self._hidden, SUMMED))](
            parts,
            slots,
            shared,
            out,
            OUT_STRIDE=out.stride(0),
            SIZE=self._hidden,
            EACH=each,
            HAS_SHARED=shared is not None,
            ADDS=add_to is not None,
            BLOCK=SUMMED,
        )
        return out


def group_experts(
    gate_up: Sequence[object], down: Sequence[object], clamp: tuple[float, float] | None
) -> TritonExperts | None:
    """The experts as two products; None where they are held in different ways, take their inputs in different orders
    (GPTQ's desc_act), or hold gate and up as one quantized weight in which up does not begin with a tile."""
    firsts, lasts = _alike(gate_up), _alike(down)
    if not firsts or not lasts:
        return None
    if clamp and firsts[0].weight.is_quantized and firsts[0].out_features % (2 * OUTPUTS_TOGETHER):
        return None
    return TritonExperts(firsts, lasts, clamp)


def _alike(layers: Sequence[object]) -> list[TritonLinear]:
    """The layers, if one kernel can read them all."""
    found = [layer for layer in layers if isinstance(layer, TritonLinear) and layer.input_order is None]
    forms = {(each.weight.form, each.activation, each.bias is None) for each in found}
    return found if len(found) == len(layers) and len(forms) == 1 else []
