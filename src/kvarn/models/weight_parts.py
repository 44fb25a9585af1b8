"""Weights cut and joined, plain or quantised: a rank's part of them, and several that are multiplied as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kvarn.kernels.linear import Linear, Norm
from kvarn.kernels.weights import Int4Weight, Int8Weight, Weight, dequantise
from kvarn.models.parallel import ParallelError


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A weight as a checkpoint gives it, or a part of one."""

    weight: Weight
    input_order: torch.Tensor | None = None
    """[in] int64: column k multiplies input number `input_order[k]`; None: columns stand in the inputs' own order."""

    @property
    def out_features(self) -> int:
        """Rows."""
        values = self.weight if isinstance(self.weight, torch.Tensor) else self.weight.values
        return int(values.shape[0])

    def outputs(self, held: range) -> WeightPart:
        """The rows `held`."""
        rows = slice(held.start, held.stop)
        return replace(self, weight=_rows(self.weight, rows))

    def inputs(self, held: range, name: str) -> WeightPart:
        """The columns `held` of the weight `name`. Raises ParallelError where they cut a group of quantised weights."""
        if self.input_order is not None:
            raise ParallelError(
                f"{name} was quantised with its inputs reordered (desc_act): its inputs cannot be divided among ranks"
            )
        columns = slice(held.start, held.stop)
        match self.weight:
            case Int8Weight(values, scales):
                return WeightPart(Int8Weight(values[:, columns], scales))
            case Int4Weight(values, scales, zeros, group):
                if held.start % group or (held.stop % group and held.stop != values.shape[1]):
                    raise ParallelError(
                        f"{name} was quantised in groups of {group} inputs, and inputs {held.start} to {held.stop} "
                        "of one rank cut a group: use fewer ranks"
                    )
                groups = slice(held.start // group, -(-held.stop // group))
                held_zeros = None if zeros is None else zeros[:, groups]
                return WeightPart(Int4Weight(values[:, columns], scales[:, groups], held_zeros, group))
            case _:
                return WeightPart(self.weight[:, columns])

    def dequantised(self) -> torch.Tensor:
        """[out, in] float32, columns in the inputs' own order."""
        weight = dequantise(self.weight)
        if self.input_order is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.input_order, weight)


def join_outputs(parts: Sequence[WeightPart]) -> WeightPart | None:
    """One below the other; None where they are quantised in different ways."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if not all(_same_order(first.input_order, part.input_order) for part in parts):
        return None
    weights = [part.weight for part in parts]
    if all(isinstance(weight, torch.Tensor) for weight in weights):
        return replace(first, weight=torch.cat([w for w in weights if isinstance(w, torch.Tensor)]))
    int8 = [weight for weight in weights if isinstance(weight, Int8Weight)]
    if len(int8) == len(weights):
        joined = Int8Weight(torch.cat([w.values for w in int8]), torch.cat([w.scales for w in int8]))
        return replace(first, weight=joined)
    int4 = [weight for weight in weights if isinstance(weight, Int4Weight)]
    if len(int4) == len(weights) and len({weight.group for weight in int4}) == 1:
        return replace(first, weight=_join_int4(int4))
    return None


def _join_int4(weights: Sequence[Int4Weight]) -> Int4Weight:
    zeros = None
    if any(weight.zeros is not None for weight in weights):
        eights = [torch.full_like(w.scales, 8, dtype=torch.uint8) if w.zeros is None else w.zeros for w in weights]
        zeros = torch.cat(eights)
    values, scales = torch.cat([w.values for w in weights]), torch.cat([w.scales for w in weights])
    return Int4Weight(values, scales, zeros, weights[0].group)


def _rows(weight: Weight, rows: slice) -> Weight:
    match weight:
        case Int8Weight(values, scales):
            return Int8Weight(values[rows], scales[rows])
        case Int4Weight(values, scales, zeros, group):
            return Int4Weight(values[rows], scales[rows], None if zeros is None else zeros[rows], group)
        case _:
            return weight[rows]


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


@dataclass(frozen=True, slots=True)
class ReorderedLinear:
    """A packed weight whose columns do not stand in the inputs' order: the inputs are put into the columns'."""

    inner: Linear
    order: torch.Tensor

    @property
    def out_features(self) -> int:
        """The inner one's."""
        return self.inner.out_features

    @property
    def in_features(self) -> int:
        """The inner one's."""
        return self.inner.in_features

    @property
    def nbytes(self) -> int:
        """The inner one's."""
        return self.inner.nbytes

    def __call__(
        self, x: torch.Tensor, *, norm: Norm | None = None, add_to: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `kvarn.kernels.linear.Linear`. The mean of squares of a norm does not care about order."""
        ordered = None if norm is None else Norm(norm.weight[self.order], norm.eps)
        return self.inner(x[:, self.order], norm=ordered, add_to=add_to)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, columns in the inputs' order."""
        rows = self.inner.rows(ids)
        return torch.empty_like(rows).index_copy_(1, self.order, rows)
