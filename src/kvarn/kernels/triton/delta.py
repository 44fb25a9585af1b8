"""The gated delta rule by the Triton kernels: see `jit.delta`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.batch import PagedBatch, StateBatch, StateCache
from kvarn.kernels.delta import QUERY_KEY_EPS, DeltaWeights
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton.jit import delta
from kvarn.kernels.triton.linear import check_rows
from kvarn.shapes.attention import DeltaDimensions

COLUMNS = 32
"""Of a head's matrix that one program has in its registers."""


@dataclass(frozen=True, slots=True)
class TritonDeltaPlan:
    """See `kvarn.kernels.delta.DeltaPlan`. Nothing waits for the device: whose states they are is data to the kernels,
    so a captured step is repeated with others."""

    dims: DeltaDimensions
    states: StateBatch
    query_starts: torch.Tensor
    rows: torch.Tensor
    """[T] int64: the sequence of each token."""

    @staticmethod
    def of(batch: PagedBatch, dims: DeltaDimensions) -> TritonDeltaPlan:
        """The plan of one step. Raises KernelInputError where the step names no states, or not one for each row."""
        states, starts = batch.recurrent_states, batch.query_starts
        if states is None:
            raise KernelInputError("the model has recurrent states, but the step does not say which ones")
        if states.places.shape != (len(starts) - 1,):
            raise KernelInputError(f"{len(states.places)} places are not those of {len(starts) - 1} sequences")
        tokens = torch.arange(len(states.saves), dtype=starts.dtype, device=starts.device)
        return TritonDeltaPlan(dims, states, starts, torch.bucketize(tokens, starts[1:], right=True))

    def run(
        self, projected: torch.Tensor, rates: torch.Tensor, weights: DeltaWeights, cache: StateCache, layer: int
    ) -> torch.Tensor:
        """Three kernels. Raises KernelInputError where tensors do not fit together."""
        dims, states, tokens = self.dims, self.states, len(self.rows)
        check_rows(projected, (tokens, dims.channels + dims.value_features), projected.dtype)
        check_rows(rates, (tokens, 2 * dims.value_heads), rates.dtype)
        matrices, inputs = cache.matrices[layer], cache.inputs[layer]
        device = projected.device
        mixed = torch.empty((tokens, dims.channels), dtype=torch.float32, device=device)
        factors = torch.empty((tokens, dims.value_heads, 2), dtype=torch.float32, device=device)
        sums = torch.empty((tokens, dims.value_features), dtype=torch.float32, device=device)
        out = torch.empty_like(sums, dtype=projected.dtype)
        if not tokens:
            return out
        delta.mix[(tokens, 2 * dims.key_heads + dims.value_heads)](
            projected,
            rates,
            weights.convolution,
            weights.decay,
            weights.decay_bias,
            self.rows,
            self.query_starts,
            states.places,
            states.saves,
            inputs,
            mixed,
            factors,
            QUERY_KEY_EPS,
            STRIDE=projected.stride(0),
            RATES_STRIDE=rates.stride(0),
            KEY_HEADS=dims.key_heads,
            VALUE_HEADS=dims.value_heads,
            KEY=dims.key_dim,
            VALUE=dims.value_dim,
            WINDOW=dims.window,
            BLOCK=triton.next_power_of_2(max(dims.key_dim, dims.value_dim)),
            num_warps=1,
        )
        delta.advance[(len(states.places), dims.value_heads, triton.cdiv(dims.value_dim, COLUMNS))](
            mixed,
            factors,
            self.query_starts,
            states.places,
            states.saves,
            matrices,
            sums,
            KEY_HEADS=dims.key_heads,
            VALUE_HEADS=dims.value_heads,
            KEY=dims.key_dim,
            VALUE=dims.value_dim,
            KEY_BLOCK=triton.next_power_of_2(dims.key_dim),
            COLUMNS=COLUMNS,
        )
        piece = triton.cdiv(dims.channels, dims.value_heads)
        delta.finish[(tokens, dims.value_heads)](
            sums,
            projected,
            weights.norm.weight,
            self.rows,
            self.query_starts,
            states.places,
            inputs,
            out,
            weights.norm.eps,
            STRIDE=projected.stride(0),
            CHANNELS=dims.channels,
            VALUE_HEADS=dims.value_heads,
            VALUE=dims.value_dim,
            WINDOW=dims.window,
            BLOCK=triton.next_power_of_2(dims.value_dim),
            PIECE=piece,
            PIECE_BLOCK=triton.next_power_of_2(piece),
            WINDOW_BLOCK=triton.next_power_of_2(max(1, dims.window - 1)),
            num_warps=1,
        )
        return out
