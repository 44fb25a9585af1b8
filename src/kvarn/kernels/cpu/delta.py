"""The gated delta rule in the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import PagedBatch, StateCache
from kvarn.kernels.cpu import _native
from kvarn.kernels.delta import DeltaWeights
from kvarn.kernels.errors import KernelInputError
from kvarn.shapes.attention import DeltaDimensions


@dataclass(frozen=True, slots=True)
class CpuDeltaPlan:
    """See `kvarn.kernels.delta.DeltaPlan`."""

    backend: _native.Backend
    dims: DeltaDimensions
    query_starts: torch.Tensor
    places: torch.Tensor
    saves: torch.Tensor
    """[N, 3] int64, in ascending order: a sequence, after how many tokens of it, and the place of the copy."""
    num_places: int
    """That the cache must have."""

    @staticmethod
    def of(backend: _native.Backend, batch: PagedBatch, dims: DeltaDimensions) -> CpuDeltaPlan:
        """The plan of one step. Raises KernelInputError where its states do not fit together."""
        states, starts = batch.recurrent_states, batch.query_starts
        if states is None:
            raise KernelInputError("the model has recurrent states, but the step does not say which ones")
        starts = starts.long()
        for what, numbers, count in (("places", states.places, len(starts) - 1), ("saves", states.saves, starts[-1])):
            if numbers.dtype != torch.int64 or numbers.shape != (count,):
                raise KernelInputError(f"{what} must be int64 [{count}], not {numbers.dtype} {tuple(numbers.shape)}")
        tokens = (states.saves >= 0).nonzero().flatten()
        targets = states.saves[tokens]
        named = [*states.places.tolist(), *targets.tolist()]
        if len(set(named)) < len(named) or min(named) < 0:
            raise KernelInputError("two rows of a step use one place of the states, or one has none")
        rows = torch.bucketize(tokens, starts[1:], right=True)
        saves = torch.stack([rows, tokens + 1 - starts[rows], targets], 1)
        return CpuDeltaPlan(backend, dims, batch.query_starts.contiguous(), states.places, saves, max(named) + 1)

    def run(
        self, projected: torch.Tensor, rates: torch.Tensor, weights: DeltaWeights, cache: StateCache, layer: int
    ) -> torch.Tensor:
        """One compiled call. A token's result depends on its own sequence alone, to the last bit."""
        dims, tokens = self.dims, int(self.query_starts[-1])
        _check(projected, tokens, dims.channels + dims.value_features)
        _check(rates, tokens, 2 * dims.value_heads)
        if cache.num_places < self.num_places:
            raise KernelInputError(f"the step uses state {self.num_places - 1} of a cache of {cache.num_places}")
        out = torch.empty((tokens, dims.value_features), dtype=torch.float32)
        self.backend.delta_rule(
            dims.key_heads,
            dims.value_heads,
            dims.key_dim,
            dims.value_dim,
            dims.window,
            len(self.places),
            tokens,
            self.query_starts.data_ptr(),
            self.places.data_ptr(),
            self.saves.data_ptr(),
            len(self.saves),
            projected.data_ptr(),
            rates.data_ptr(),
            weights.convolution.data_ptr(),
            weights.decay.data_ptr(),
            weights.decay_bias.data_ptr(),
            weights.norm.weight.data_ptr(),
            weights.norm.eps,
            cache.matrices[layer].data_ptr(),
            cache.inputs[layer].data_ptr(),
            out.data_ptr(),
        )
        return out


def _check(numbers: torch.Tensor, tokens: int, size: int) -> None:
    if numbers.dtype != torch.float32 or numbers.shape != (tokens, size) or not numbers.is_contiguous():
        raise KernelInputError(
            f"the delta rule needs contiguous float32 {(tokens, size)}, not {numbers.dtype} {tuple(numbers.shape)}"
        )
