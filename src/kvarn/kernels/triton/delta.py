"""The gated delta rule by the Triton kernels: see `jit.delta`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.batch import StateBatch, StateCache
from kvarn.kernels.checks import check_rows
from kvarn.kernels.delta import QUERY_KEY_EPS, DeltaWeights
from kvarn.kernels.triton.jit import delta
from kvarn.shapes.attention import DeltaDimensions

COLUMNS = 32
"""Columns of a head's matrix that one program has in its registers."""


@dataclass(frozen=True, slots=True)
class TritonDeltaMetadata:
    """See `kvarn.kernels.delta.DeltaMetadata`. Nothing waits for the device: the kernels read which states
    they change, so a captured step is repeated with others."""

    dims: DeltaDimensions
    states: StateBatch
    query_starts: torch.Tensor
    rows: torch.Tensor
    """[T] int64: the sequence of each token."""

    @staticmethod
    def of(starts: torch.Tensor, states: StateBatch, dims: DeltaDimensions) -> TritonDeltaMetadata:
        tokens = torch.arange(len(states.saves), dtype=starts.dtype, device=starts.device)
        return TritonDeltaMetadata(dims, states, starts, torch.bucketize(tokens, starts[1:], right=True))

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
        slice_size = triton.cdiv(dims.channels, dims.value_heads)
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
            SLICE=slice_size,
            SLICE_BLOCK=triton.next_power_of_2(slice_size),
            WINDOW_BLOCK=triton.next_power_of_2(max(1, dims.window - 1)),
            num_warps=1,
        )
        return out
