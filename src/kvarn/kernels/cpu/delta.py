"""The gated delta rule in the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import StateBatch, StateCache
from kvarn.kernels.checks import check_rows
from kvarn.kernels.cpu import _native
from kvarn.kernels.delta import DeltaWeights
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes.attention import DeltaDimensions


@dataclass(frozen=True, slots=True)
class CpuDeltaMetadata:
    backend: _native.Backend
    dims: DeltaDimensions
    query_starts: torch.Tensor
    places: torch.Tensor
    saves: torch.Tensor
    """[N, 3] int64, in ascending order: a sequence, after how many tokens of it, and the place of the copy."""
    num_places: int  # places that the cache must have

    @staticmethod
    def of(
        backend: _native.Backend, query_starts: torch.Tensor, states: StateBatch, dims: DeltaDimensions
    ) -> CpuDeltaMetadata:
        """The metadata of one step. Raises KernelInputError where two sequences have one state, or one has none."""
        starts = query_starts.long()
        if states.saves.shape != (int(starts[-1]),):
            raise KernelInputError(f"saves must be int64 [{int(starts[-1])}], not {tuple(states.saves.shape)}")
        tokens = (states.saves >= 0).nonzero().flatten()
        targets = states.saves[tokens]
        named = [*states.places.tolist(), *targets.tolist()]
        if len(set(named)) < len(named) or min(named) < 0:
            raise KernelInputError("two rows of a step use one place of the states, or one has none")
        rows = torch.bucketize(tokens, starts[1:], right=True)
        saves = torch.stack([rows, tokens + 1 - starts[rows], targets], 1)
        return CpuDeltaMetadata(backend, dims, query_starts.contiguous(), states.places, saves, max(named) + 1)

    def run(
        self, projected: torch.Tensor, rates: torch.Tensor, weights: DeltaWeights, cache: StateCache, layer: int
    ) -> torch.Tensor:
        """One compiled call. A token's result depends on its own sequence alone, to the last bit."""
        dims, tokens = self.dims, int(self.query_starts[-1])
        for numbers, size in ((projected, dims.channels + dims.value_features), (rates, 2 * dims.value_heads)):
            check_rows(numbers, (tokens, size), torch.float32)
            if not numbers.is_contiguous():
                raise KernelInputError(f"the delta rule needs contiguous rows, not strides {numbers.stride()}")
        if cache.num_places < self.num_places:
            raise KernelInputError(f"the step uses state {self.num_places - 1} of a cache of {cache.num_places}")
        out = torch.empty((tokens, dims.value_features), dtype=torch.float32)
        self.backend.delta_rule(
            key_heads=dims.key_heads,
            value_heads=dims.value_heads,
            key_dim=dims.key_dim,
            value_dim=dims.value_dim,
            window=dims.window,
            sequences=len(self.places),
            tokens=tokens,
            query_starts=self.query_starts.data_ptr(),
            places=self.places.data_ptr(),
            saves=self.saves.data_ptr(),
            num_saves=len(self.saves),
            projected=projected.data_ptr(),
            rates=rates.data_ptr(),
            convolution=weights.convolution.data_ptr(),
            decay=weights.decay.data_ptr(),
            decay_bias=weights.decay_bias.data_ptr(),
            norm=weights.norm.weight.data_ptr(),
            eps=weights.norm.eps,
            matrices=cache.matrices[layer].data_ptr(),
            inputs=cache.inputs[layer].data_ptr(),
            out=out.data_ptr(),
        )
        return out
