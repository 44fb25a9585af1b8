"""Linear layers whose inputs are divided among ranks (row-parallel, as Megatron-LM calls them)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.parallel.tensor import Parallel, tree_sum


class RowParallelLinear:
    """A product with all inputs, summed over a fixed partition of them: see `kvarn.kernels.linear.Linear`.

    The bits of its result are the same at every degree of parallelism.

    Args:
        parts: This rank's parts, in the order of the inputs; None for one without inputs.
        bias: [out] of the whole layer, added to the whole sum.
        parallel: The ranks that hold the other parts; None: this one holds all.
    """

    def __init__(self, parts: Sequence[Linear | None], bias: torch.Tensor | None, parallel: Parallel | None) -> None:
        held = [part for part in parts if part is not None]
        self.adapter_layer = -1  # adapters change the parts
        self.out_features = held[0].out_features
        self.in_features = sum(part.in_features for part in held)
        self.nbytes = sum(part.nbytes for part in held)
        self.input_order: torch.Tensor | None = None
        self.bias = bias
        self.parts = parts
        self._parallel = parallel

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """x [T, in_features of this rank] to the whole layer's [T, out_features], the same on every rank."""
        assert norm is None, "a rank does not see the whole vector: it cannot be normed here"
        total = self.partial(x, adapters)
        if self._parallel is not None:
            total = self._parallel.all_reduce(total)
            total = total if self.bias is None else total + self.bias
        return total.to(x.dtype) if add_to is None else add_to.add_(total)

    def partial(self, x: torch.Tensor, adapters: AdapterBatch | None = None) -> torch.Tensor:
        """This rank's part of the sum, [T, out_features] float32: without the bias, unless it holds all inputs."""
        columns = torch.split(x, [0 if part is None else part.in_features for part in self.parts], dim=1)
        pairs = zip(self.parts, columns, strict=True)
        total = tree_sum([None if part is None else part(own, adapters=adapters).float() for part, own in pairs])
        return total if self.bias is None or self._parallel is not None else total + self.bias

    @property
    def is_divided(self) -> bool:
        return self._parallel is not None

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.rows(ids) for part in self.parts if part is not None], dim=1)
